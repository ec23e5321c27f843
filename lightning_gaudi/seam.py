"""What is patched in Lightning's Trainer and Fabric, and the private names this relies on.

Each decides on accelerator, strategy and precision in a class of its own, the connector. Seven of
its methods are wrapped; each does what it did unless the accelerator is ours:

1. `_check_config_and_set_final_flags`: of an unknown name it says what an HPU has, not a GPU.
2. `_choose_auto_accelerator`: "hpu" where Lightning would take the CPU and there is a card.
3. `_set_parallel_devices_and_init_accelerator`: says what was looked for where there is no card;
   in a notebook devices="auto" is one card, as Lightning has it for GPUs.
4. `_choose_and_init_cluster_environment`: Open MPI's, which Lightning finds with mpi4py only.
5. `_choose_strategy`: a strategy on the HPU, where Lightning raises or falls back to the CPU.
6. `_check_strategy_and_fallback`: the user's choice in its form for the HPU, or a refusal.
7. `_check_and_init_precision`: autocast on the HPU, where Lightning would name another device.

Contract: Lightning 2.5.6 to 2.6.6 has all names in `METHODS` and `_ATTRIBUTES`. They are looked
for before anything is patched; if one is missing, a warning says so and nothing is.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from lightning.fabric.connector import _convert_precision_to_unified_args
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gaudi._core import vendor

from .conversion import NAMES, Forms, refuse_interactive, to_hpu_strategy
from .distributed.cluster import mpi_environment
from .fabric.accelerator import HPUAccelerator
from .fabric.precision import to_hpu_precision, unsupported

MARK = "_lightning_gaudi_is_patched"
"""The attribute of what has been patched."""

_ATTRIBUTES = (
    "_accelerator_flag",
    "_cluster_environment_flag",
    "_devices_flag",
    "_num_nodes_flag",
    "_parallel_devices",
    "_strategy_flag",
    "accelerator",
    "strategy",
)


class Room(NamedTuple):
    """What the Trainer and Fabric have names of their own for."""

    connector: str
    """The connector's class."""
    precision_name: str
    """Its attribute with the precision that was asked for by name."""
    precision_plugin: str
    """Its attribute with the plugin for it that was passed instead."""
    accelerators: Any
    """Lightning's registry of accelerators by name."""
    accelerator: type[HPUAccelerator]
    strategies: Forms


def patch_connector(module: ModuleType, room: Room) -> None:
    """Wrap the connector's methods and register our names; doing it again is harmless."""
    connector = getattr(module, room.connector, None)
    if connector is not None and MARK in vars(connector):
        return
    missing = [room.connector] if connector is None else _missing_names(connector, room)
    if missing:
        warn_of_missing(module, missing)
        return
    room.accelerator.register_accelerators(room.accelerators)
    for strategy in room.strategies.of.values():
        strategy.register_strategies(room.strategies.registry)
    for name, wrap in METHODS.items():
        setattr(connector, name, wrap(getattr(connector, name), room))
    vendor.repair_if_imported()
    setattr(connector, MARK, True)


def _missing_names(connector: type, room: Room) -> list[str]:
    used = {
        name
        for function in vars(connector).values()
        if hasattr(function, "__code__")
        for name in function.__code__.co_names
    }
    attributes = (*_ATTRIBUTES, room.precision_name, room.precision_plugin)
    missing = [name for name in METHODS if not hasattr(connector, name)]
    return missing + [name for name in attributes if name not in used]


def warn_of_missing(module: ModuleType, missing: list[str]) -> None:
    """Warn that `module` of Lightning is not what we know, and is left as it is."""
    warnings.warn(
        f"accelerator='hpu' will not work: {module.__name__} has no {', '.join(missing)} any more, "
        "which lightning-gaudi relies on. Upgrade lightning-gaudi, or install a Lightning from "
        "2.5.6 to before 2.7.",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_ours(connector: Any) -> bool:
    return isinstance(connector.accelerator, HPUAccelerator)


def _names_hpu(flag: Any) -> bool:
    return flag == "hpu" or isinstance(flag, HPUAccelerator)


def _wrap_check_config(original: Callable[..., None], room: Room) -> Any:
    @functools.wraps(original)
    def check_config(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except ValueError as error:
            typed = inspect.signature(original).bind(self, *args, **kwargs).arguments
            if _names_hpu(typed["accelerator"]):
                _refuse_unknown(typed["strategy"], typed["precision"], error, room)
            raise

    return check_config


def _refuse_unknown(strategy: Any, precision: Any, error: ValueError, room: Room) -> None:
    """Raise our own words if Lightning's `error` is about a name it does not know."""
    known = {"auto", *room.strategies.registry}
    if isinstance(strategy, str) and strategy.lower() not in known:
        raise MisconfigurationException(
            f"strategy={strategy!r} is unknown. With accelerator='hpu', pass {NAMES}, or an "
            "instance of a strategy."
        ) from error
    try:
        _convert_precision_to_unified_args(precision)
    except ValueError:
        raise MisconfigurationException(unsupported(f"precision={precision!r}")) from error


def _wrap_choose_auto_accelerator(original: Callable[[], str], room: Room) -> Any:
    @functools.wraps(original)
    def choose_auto_accelerator() -> str:
        chosen = original()
        return "hpu" if chosen == "cpu" and HPUAccelerator.is_available() else chosen

    return staticmethod(choose_auto_accelerator)


def _wrap_init_accelerator(original: Callable[[Any], None], room: Room) -> Any:
    @functools.wraps(original)
    def init_accelerator(self: Any) -> None:
        flag = self._accelerator_flag
        if _names_hpu(flag) and not HPUAccelerator.is_available():
            raise MisconfigurationException(_no_card(flag))
        if _names_hpu(flag) and self._devices_flag == "auto" and _IS_INTERACTIVE:
            self._devices_flag = 1
            num_cards = vendor.num_visible_cards()
            if num_cards > 1:
                rank_zero_info(
                    f"Using 1 of {num_cards} HPUs: an interactive session drives one. Run a script "
                    "to use all."
                )
        original(self)

    return init_accelerator


def _wrap_choose_environment(original: Callable[[Any], Any], room: Room) -> Any:
    @functools.wraps(original)
    def choose_environment(self: Any) -> Any:
        is_open = _is_ours(self) and self._cluster_environment_flag is None
        return (mpi_environment() if is_open else None) or original(self)

    return choose_environment


def _wrap_choose_strategy(original: Callable[[Any], Any], room: Room) -> Any:
    @functools.wraps(original)
    def choose_strategy(self: Any) -> Any:
        if not _is_ours(self):
            return original(self)
        if len(self._parallel_devices) == 1 and self._num_nodes_flag == 1:
            return room.strategies.single()
        return room.strategies.ddp()

    return choose_strategy


def _wrap_check_strategy(original: Callable[[Any], None], room: Room) -> Any:
    @functools.wraps(original)
    def check_strategy(self: Any) -> None:
        flag = self._strategy_flag
        if _is_ours(self):
            self._strategy_flag = to_hpu_strategy(flag, room.strategies)
            if isinstance(self._strategy_flag, room.strategies.single):
                _refuse_several(flag, len(self._parallel_devices), self._num_nodes_flag)
                self._strategy_flag.card = self._parallel_devices[0]
            elif _IS_INTERACTIVE:
                refuse_interactive(flag, len(self._parallel_devices))
        elif _is_hpu_strategy(flag, room.strategies):
            raise MisconfigurationException(
                f"strategy={flag!r} trains on an HPU, but the accelerator is "
                f"{self._accelerator_flag!r}. Pass accelerator='hpu', or another strategy."
            )
        original(self)

    return check_strategy


def _wrap_init_precision(original: Callable[[Any], Any], room: Room) -> Any:
    @functools.wraps(original)
    def init_precision(self: Any) -> Any:
        if not _is_ours(self):
            return original(self)
        plugin = getattr(self, room.precision_plugin)
        if plugin is None:
            return self.strategy.precision_kind(getattr(self, room.precision_name))
        to_hpu_precision(plugin, room.strategies.precisions)
        return original(self)

    return init_precision


METHODS: dict[str, Callable[[Any, Room], Any]] = {
    "_check_config_and_set_final_flags": _wrap_check_config,
    "_choose_auto_accelerator": _wrap_choose_auto_accelerator,
    "_set_parallel_devices_and_init_accelerator": _wrap_init_accelerator,
    "_choose_and_init_cluster_environment": _wrap_choose_environment,
    "_choose_strategy": _wrap_choose_strategy,
    "_check_strategy_and_fallback": _wrap_check_strategy,
    "_check_and_init_precision": _wrap_init_precision,
}
"""The methods of a connector that are wrapped, and by what."""


def _no_card(flag: Any) -> str:
    typed = repr(flag) if isinstance(flag, str) else f"{type(flag).__name__}()"
    return (
        f"accelerator={typed} needs an Intel Gaudi card, but {vendor.unavailable_reason()}, and no "
        "simulator was asked for. Run on a machine with Gaudi and its software, or simulate a "
        "card: set LIGHTNING_GAUDI_SIMULATE=1 before Python starts, or start the program with "
        "`lightning-gaudi simulate -- python ...`."
    )


def _is_hpu_strategy(flag: Any, forms: Forms) -> bool:
    if isinstance(flag, str):
        flag = forms.registry[flag]["strategy"]
        return isinstance(flag, type) and issubclass(flag, forms.base)
    return isinstance(flag, forms.base)


def _refuse_several(flag: Any, num_devices: int, num_nodes: int) -> None:
    """Refuse a strategy for one card where there are several: the others would idle."""
    if num_devices > 1 or num_nodes > 1:
        raise MisconfigurationException(
            f"strategy={flag!r} trains on one card, but devices and num_nodes ask for "
            f"{num_devices * num_nodes}. Pass strategy='auto' or 'hpu_ddp', or devices=1."
        )
