"""Has `HPUPrecision`, Fabric's plugin for the precisions of one card, DDP and FSDP2."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, update_wrapper
from typing import Any, Literal, get_args

import torch
from lightning.fabric.plugins.precision import MixedPrecision, Precision
from lightning.fabric.plugins.precision.utils import _convert_fp_tensor, _DtypeContextManager
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities import apply_to_collection
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core.precision.autocast_ops import check_op_lists
from lightning_gaudi._patches.apply import swap_class

from ...distributed.devices import check_float16

PrecisionName = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"]
SUPPORTED: tuple[str, ...] = get_args(PrecisionName)

SHORT = {"16": "16-mixed", "32": "32-true", "bf16": "bf16-mixed"}
"""Lightning replaces these before a plugin sees them; lightning-habana's plugins took them, too."""

_DTYPES = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}

PORTABLE = ("Precision", "MixedPrecision", "HalfPrecision")
"""Lightning's own plugins that compute on any device, or on the one that they are given."""


class HPUWholePrecision(Precision):
    """Sets how numbers are held and computed on an HPU, in the Trainer and in Fabric.

    - `"32-true"`: all in fp32.
    - `"bf16-mixed"`: weights in fp32; operations in the dtype that the vendor's autocast lists say.
    - `"bf16-true"`: weights and floating-point inputs in bf16.
    - `"16-mixed"`, `"16-true"`: the same in fp16, on a card that computes in it: not on a
      first-generation Gaudi. `"16-mixed"` scales the loss; a step with an overflow is left out.
    """

    device = "hpu"
    """The device it autocasts on, under the name that Lightning's plugins have for it."""

    # A class attribute, since an instance of Lightning's own, which may lack it, may have become
    # one of ours.
    scaler: GradScaler | None = None
    """Scales the loss of `"16-mixed"`."""

    def __init__(
        self,
        precision: PrecisionName | Literal["32", "bf16", "16"] = "32-true",
        device: str = "hpu",
        scaler: GradScaler | None = None,
    ) -> None:
        """Chooses the precision.

        Args:
            precision: One of the above; `"32"` is short for `"32-true"`, `"bf16"` for
                `"bf16-mixed"`, `"16"` for `"16-mixed"`.
            device: `"hpu"`, as it may be given to Lightning's own plugins.
            scaler: Scales the loss of `"16-mixed"`; one for the HPU by default.

        Raises:
            MisconfigurationException: HPU does not support it, or it takes no scaler, or it is for
                another device.
            ValueError: A file with autocast's operations would silently not be obeyed.
        """
        check_device(self, device)
        name = SHORT.get(precision, precision)
        if name not in SUPPORTED:
            raise MisconfigurationException(unsupported(f"precision={precision!r}"))
        check_scaler(self, name, scaler)
        self.precision: Any = name
        self.scaler = scaler
        self.validate_for_hpu()

    def validate_for_hpu(self) -> None:
        """Makes the plugin autocast and scale on the HPU, whether Lightning or the user made it.

        Raises:
            ValueError: A file with autocast's operations would silently not be obeyed.
        """
        if self._is_mixed:
            check_op_lists()
        if self.precision == "16-mixed":
            # Imported here, since other precisions have no use for what it loads.
            from lightning_gaudi._core.precision.grad_scaler import HPUGradScaler

            if self.scaler is None:
                self.scaler = HPUGradScaler()
            swap_class(self.scaler, GradScaler, HPUGradScaler)

    @override
    def convert_module(self, module: Module) -> Module:
        """Brings the weights into the precision they are held in.

        Raises:
            MisconfigurationException: The card, which it acquires for fp16, does not compute in it.
        """
        check_card(self.precision)
        return module.to(dtype=self._dtype) if self._holds_half else module

    @override
    def convert_input(self, data: Any) -> Any:
        """Brings floating-point tensors of a batch into the precision they are computed in."""
        if not self._holds_half:
            return data
        return apply_to_collection(data, Tensor, _convert_fp_tensor, dst_type=self._dtype)

    @override
    def convert_output(self, data: Any) -> Any:
        """Brings floating-point outputs of Fabric's modules into the default dtype."""
        if self.precision == "32-true":
            return data
        dtype = torch.get_default_dtype()
        return apply_to_collection(data, Tensor, _convert_fp_tensor, dst_type=dtype)

    @override
    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Makes new floating-point tensors in the precision of the weights."""
        return _DtypeContextManager(self._dtype) if self._holds_half else nullcontext()

    @override
    def module_init_context(self) -> AbstractContextManager[Any]:
        """Makes new weights in the precision that they are held in."""
        return self.tensor_init_context()

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        """Runs the model's forward under autocast, or with the weights' dtype as the default."""
        if self._is_mixed:
            return torch.autocast("hpu", dtype=self._dtype, cache_enabled=False)
        return self.tensor_init_context()

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype it computes in."""
        return _DTYPES[self.precision.partition("-")[0]]

    @property
    def _is_mixed(self) -> bool:
        return bool(self.precision.endswith("-mixed"))

    @property
    def _holds_half(self) -> bool:
        return self.precision in ("bf16-true", "16-true")


class HPUPrecision(HPUWholePrecision, MixedPrecision):
    """Sets how numbers are held and computed on an HPU: `Fabric(precision=...)`.

    See `HPUWholePrecision` for the precisions. In Fabric a module's floating-point outputs come in
    the default dtype, as on other devices: a loss outside of it is computed in fp32. Fabric saves
    no scaler: put `fabric.strategy.precision` into the state of a checkpoint of `"16-mixed"`.
    """

    @override
    def validate_for_hpu(self) -> None:
        """Makes Fabric demand that losses that are to be scaled go through `Fabric.backward`."""
        super().validate_for_hpu()
        if self.scaler is not None:
            self.backward = partial(MixedPrecision.backward, self)  # type: ignore[method-assign]

    @override
    def backward(self, tensor: Tensor, model: Module | None, *args: Any, **kwargs: Any) -> None:
        """Runs backward; nothing is scaled."""
        super().backward(tensor, model, *args, **kwargs)

    # Fabric takes it for Lightning's own so; it would forbid `loss.backward()` otherwise.
    update_wrapper(backward, Precision.backward)


def check_card(precision: str) -> None:
    """Refuses half precision where the card has none; acquires the card if it is asked for.

    Args:
        precision: The name that was passed, such as `"16-mixed"`.

    Raises:
        MisconfigurationException: The card does not compute in it.
    """
    if precision.startswith("16"):
        check_float16(f"precision={precision!r}", f"precision='bf{precision}'")


def check_scaler(plugin: Precision, precision: str, scaler: GradScaler | None) -> None:
    """Refuses a scaler for a precision that scales no loss.

    Args:
        plugin: A plugin of ours.
        precision: The name that was passed.
        scaler: The argument of that name.

    Raises:
        MisconfigurationException: There is a scaler, and the precision is not `"16-mixed"`, or the
            scaler is for another device.
    """
    if scaler is not None and precision != "16-mixed":
        raise MisconfigurationException(
            f"{type(plugin).__name__}(precision={precision!r}, scaler=...) scales no loss. Leave "
            "scaler out, or pass precision='16-mixed'."
        )
    if scaler is not None and scaler._device != "hpu":
        raise MisconfigurationException(
            f"{type(plugin).__name__}(scaler=...) has one for device {scaler._device!r}. Pass one "
            "for the HPU: torch.amp.GradScaler('hpu', ...)."
        )


def check_device(plugin: Precision, device: str) -> None:
    """Refuses to be a plugin for another device than the HPU.

    Args:
        plugin: A plugin of ours.
        device: The argument of that name, which some of Lightning's own plugins have.

    Raises:
        MisconfigurationException: The device is not the HPU.
    """
    if device != "hpu":
        raise MisconfigurationException(
            f"{type(plugin).__name__}(device={device!r}) computes on HPUs alone. Leave device "
            "out, or take Lightning's own plugin for another device."
        )


def check_precision_plugin(plugin: Precision) -> None:
    """Refuses a precision plugin of Lightning's own that would not work as it says on an HPU.

    Raises:
        MisconfigurationException: It is for another device, or a precision HPU does not support.
    """
    kind = type(plugin)
    if not kind.__module__.startswith(("lightning.pytorch.", "lightning.fabric.")):
        return
    device = getattr(plugin, "device", "hpu")
    if kind.__name__ not in PORTABLE:
        typed = f"{kind.__name__}()"
    elif plugin.precision not in SUPPORTED or device != "hpu":
        typed = f"{kind.__name__}(precision={plugin.precision!r}, device={device!r})"
    else:
        return
    raise MisconfigurationException(unsupported(f"plugins={typed}"))


def unsupported(setting: str, supported: Iterable[str] = SUPPORTED) -> str:
    """Returns the message about a precision that HPU does not support.

    Args:
        setting: The argument as it was typed.
        supported: The precisions that may be passed instead.
    """
    if any(repr(name) in setting for name in ("fp8", "transformer-engine")):
        return (
            f"{setting} is no precision of this plugin. Pass precision='fp8' to the Trainer or "
            "Fabric, or plugins=HPUFP8Precision(), which has the options of fp8."
        )
    return (
        f"{setting} is not supported with accelerator='hpu'. HPU supports precision="
        f"{', '.join(map(repr, (*supported, 'fp8')))}: pass one of these instead."
    )
