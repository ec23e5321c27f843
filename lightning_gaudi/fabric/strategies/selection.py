"""Chooses the strategy on an HPU: the default, or the user's choice in its form for the HPU.

Only the form of `strategy_table` that is asked for is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.fabric.connector import _convert_precision_to_unified_args
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gaudi._core import vendor
from lightning_gaudi._patches.apply import swap_class
from lightning_gaudi.strategy_table import FORMS

from ...distributed.devices import check_number
from ..precision.plugin import PORTABLE, check_precision_plugin, unsupported

_BEGINNINGS = ("auto", "hpu_", "ddp", "deepspeed", "fsdp")

PRECISIONS = {
    "BitsandbytesPrecision": "bitsandbytes.HPUBitsandbytesPrecision",
    "DeepSpeedPrecision": "deepspeed.HPUDeepSpeedPrecision",
    "FSDPPrecision": "fsdp.HPUFSDPPrecision",
    "HalfPrecision": "plugin.HPUPrecision",
    "MixedPrecision": "plugin.HPUPrecision",
}
"""Lightning's precision plugins that have a form for the HPU, with its module and class."""


_FP8 = {
    "HPUDeepSpeedPrecision": "fp8.HPUDeepSpeedFP8Precision",
    "HPUFSDPPrecision": "fp8.HPUFSDPFP8Precision",
    "HPUPrecision": "fp8.HPUFP8Precision",
    "HPUPrecisionPlugin": "fp8.HPUFP8Precision",
}
"""Each kind of plugin that a strategy makes, and the one that computes in fp8."""


class StrategySelection(NamedTuple):
    """Chooses strategies for the Trainer, or for Fabric."""

    registry: Any
    """Lightning's registry of strategies by name."""
    lightning: str
    """Lightning's package with its strategies."""
    ours: str
    """Our package with the forms of `strategy_table`."""
    precision: str
    """Our package with the forms of `PRECISIONS`."""
    names: str
    """The values for `strategy`, for messages."""

    def default(self, is_one: bool) -> Any:
        """Returns the strategy that "auto" stands for, for one card or for several."""
        return self._form("SingleDeviceStrategy" if is_one else "DDPStrategy")()

    def takes_one_card(self, strategy: Any, is_interactive: bool) -> bool:
        """Returns whether devices="auto" means one card, by Lightning's rule for GPUs.

        Args:
            strategy: The user's value, which Lightning knows.
            is_interactive: Whether this is a notebook or a Python shell, which drives one card.
        """
        if is_interactive:
            num_cards = vendor.num_visible_cards()
            if num_cards > 1:
                rank_zero_info(
                    f"Using 1 of {num_cards} HPUs: an interactive session drives one. Run a script "
                    "to use all."
                )
            return True
        kind = self._kind(strategy) if strategy != "auto" else None
        return kind is not None and self._base_name(kind) == "SingleDeviceStrategy"

    def convert(
        self,
        strategy: Any,
        devices: Sequence[torch.device],
        num_nodes: int,
        *,
        is_interactive: bool,
    ) -> Any:
        """Returns the HPU's form of `strategy` for the cards that it is to use.

        Args:
            strategy: A registered name, or an instance; an instance stays the user's object, and
                keeps its arguments and plugins.
            devices: The cards of this node.
            num_nodes: How many nodes there are.
            is_interactive: Whether this is a notebook or a Python shell.

        Raises:
            MisconfigurationException: It has no form for the HPU, has an argument that an HPU
                cannot honour, or is not for that many cards.
        """
        found = self.to_form(strategy)
        if self._base_name(type(found)) == "SingleDeviceStrategy":
            _refuse_several(strategy, len(devices), num_nodes)
            found.choose_card(devices[0])
        elif is_interactive:
            _refuse_interactive(strategy, len(devices))
        else:
            check_number(len(devices))
        return found

    def to_form(self, strategy: Any) -> Any:
        """Returns the HPU's form of a strategy, checked; see `convert`."""
        typed = _typed(strategy)
        # The class is looked up before an instance is made, since some of Lightning's strategies
        # import their library as they are made.
        kind = self._kind(strategy)
        base = self._lightning_base(kind)
        is_ours = issubclass(kind, self._base())
        if not is_ours and (base.__name__ not in FORMS or not _is_movable(strategy)):
            ddp, single = FORMS["DDPStrategy"].kind, FORMS["SingleDeviceStrategy"].kind
            home = self.ours.removesuffix(".strategies")
            raise MisconfigurationException(
                f"strategy={typed} does not train on accelerator='hpu' in this version. Pass "
                f"{self.names}, or derive your strategy from {home}.{ddp} or "
                f"{single}."
            )
        form = kind if is_ours else self._form(base.__name__)
        form.check_installed()
        if isinstance(strategy, str):
            strategy = self.registry.get(strategy)
        # The object stays the user's, with its arguments and plugins; only its class changes.
        found = swap_class(strategy, base, form)
        found.validate_for_hpu(typed)
        return found

    def make_precision(self, name: str, strategy: Any) -> Any:
        """Returns what computes in a precision that was asked for by name.

        Args:
            name: One of Lightning's, or "fp8".
            strategy: One of ours.

        Raises:
            MisconfigurationException: An HPU does not compute in it.
        """
        if name not in ("fp8", "transformer-engine"):
            return strategy.precision_kind(name)
        return self._fp8_kind(strategy)(minimize_memory=not strategy.has_whole_weights)

    def _fp8_kind(self, strategy: Any) -> Any:
        return _find(f"{self.precision}.{_FP8[strategy.precision_kind.__name__]}")

    def convert_precision(self, plugin: Any, strategy: Any) -> Any:
        """Turns a user's precision plugin into its form for the HPU, or checks it.

        Args:
            plugin: Any; it stays the user's object, but for fp8 with another strategy than its own.
            strategy: One of ours.

        Returns:
            The plugin.

        Raises:
            MisconfigurationException: It would not do on an HPU, or with this strategy, what it
                says.
        """
        if getattr(plugin, "computes_in_fp8", False):
            return plugin.for_strategy(self._fp8_kind(strategy), strategy.has_whole_weights)
        for base in type(plugin).__mro__:
            if base.__name__ in PRECISIONS and base.__module__.startswith(self.lightning):
                if base.__name__ in PORTABLE:
                    check_precision_plugin(plugin)
                form = _find(f"{self.precision}.{PRECISIONS[base.__name__]}")
                if base.__name__ == "BitsandbytesPrecision":
                    self._refuse_shards(strategy)
                swap_class(plugin, base, form).validate_for_hpu()
                return plugin
        check_precision_plugin(plugin)
        return plugin

    def _refuse_shards(self, strategy: Any) -> None:
        """Refuses to shard quantized weights, whose scales are no parameters."""
        if self._base_name(type(strategy)) not in ("SingleDeviceStrategy", "DDPStrategy"):
            raise MisconfigurationException(
                f"plugins=BitsandbytesPrecision(...) keeps all quantized weights on each card, and "
                f"{type(strategy).__name__} cuts weights or their states up. Pass strategy='auto' "
                "or 'hpu_ddp'."
            )

    def refuse_unknown(self, strategy: Any, precision: Any, error: ValueError) -> None:
        """Raises an error of our own if Lightning's `error` is about an unknown name.

        Raises:
            MisconfigurationException: It is.
        """
        known = {"auto", *self.registry}
        if isinstance(strategy, str) and strategy.lower() not in known:
            ours = [name for name in known if name.startswith(_BEGINNINGS)]
            # Needed by messages of errors alone.
            from lightning_gaudi._core.wording import did_you_mean

            raise MisconfigurationException(
                f"strategy={strategy!r} is unknown.{did_you_mean(strategy.lower(), ours)} With "
                f"accelerator='hpu', pass {self.names}, or an instance of a strategy."
            ) from error
        try:
            _convert_precision_to_unified_args(precision)
        except ValueError:
            raise MisconfigurationException(unsupported(f"precision={precision!r}")) from error

    def refuse_elsewhere(self, strategy: Any, accelerator: Any) -> None:
        """Raises an error that one of our strategies cannot run on another accelerator.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(
            f"strategy={strategy!r} trains on an HPU, but the accelerator is {accelerator!r}. Pass "
            "accelerator='hpu', or another strategy."
        )

    def _form(self, name: str) -> Any:
        return _find(f"{self.ours}.{FORMS[name].module}.{FORMS[name].kind}")

    def _base(self) -> type[Any]:
        """Returns the base class of our strategies."""
        found: type[Any] = _find(f"{self.ours}.base.HPUStrategy")
        return found

    def _kind(self, strategy: Any) -> type[Any]:
        return self.registry[strategy]["strategy"] if isinstance(strategy, str) else type(strategy)

    def _lightning_base(self, kind: type[Any]) -> type[Any]:
        """Returns the class of Lightning's that `kind` is or extends."""
        return next(base for base in kind.__mro__ if base.__module__.startswith(self.lightning))

    def _base_name(self, kind: type[Any]) -> str:
        return self._lightning_base(kind).__name__


def _find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _is_movable(strategy: Any) -> bool:
    """Returns whether a strategy has no device, the HPU, or the CPU, which is the default."""
    device: torch.device | None = getattr(strategy, "_root_device", None)
    return device is None or device.type in ("cpu", "hpu")


def _typed(strategy: Any) -> str:
    if isinstance(strategy, str):
        return repr(strategy)
    device = getattr(strategy, "_root_device", None)
    return f"{type(strategy).__name__}({'' if device is None else f'device={str(device)!r}'})"


def _refuse_several(strategy: Any, num_devices: int, num_nodes: int) -> None:
    """Refuses a strategy for one card if several were asked for, which would be idle."""
    if num_devices > 1 or num_nodes > 1:
        raise MisconfigurationException(
            f"strategy={strategy!r} trains on one card, but devices and num_nodes ask for "
            f"{num_devices * num_nodes}. Pass strategy='auto' or 'hpu_ddp', or devices=1."
        )


def _refuse_interactive(strategy: Any, num_devices: int) -> None:
    """Refuses several cards in a notebook or a Python shell, which could only fork processes.

    Args:
        strategy: As the user typed it, or the one that `"auto"` gave.
        num_devices: How many cards it is for.

    Raises:
        MisconfigurationException: Always.
    """
    typed = f"strategy={strategy!r} and " if isinstance(strategy, str) else ""
    raise MisconfigurationException(
        f"{typed}devices={num_devices} need a process for each card, which an interactive session "
        "(a notebook, a Python shell, `python -i`) cannot start: it would fork, which the driver "
        "of an HPU does not survive. Pass devices=1, or run the program as a script."
    )
