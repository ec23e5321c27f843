"""`HPUPrecision`: the precisions that Gaudi computes in."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, cast, get_args

import torch
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.plugins.precision.utils import _convert_fp_tensor, _DtypeContextManager
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities import apply_to_collection
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core.autocast_ops import check_op_lists

PrecisionName = Literal["32-true", "bf16-mixed", "bf16-true"]
SUPPORTED: tuple[str, ...] = get_args(PrecisionName)

SHORT = {"16": "16-mixed", "32": "32-true", "bf16": "bf16-mixed"}
"""Lightning replaces these before a plugin sees them; lightning-habana's plugins took them, too."""

# Lightning's own plugins that compute on any device, or on the one that they are given.
_PORTABLE = ("Precision", "MixedPrecision", "HalfPrecision")


class HPUPrecision(Precision):
    """How numbers are held and computed on an HPU: `Fabric(precision=...)`.

    - `"32-true"`: all in fp32.
    - `"bf16-mixed"`: weights in fp32; operations in the dtype that the vendor's autocast lists say.
    - `"bf16-true"`: weights and floating-point inputs in bf16.

    In Fabric a module's floating-point outputs come in the default dtype, as on other devices:
    a loss outside of it is computed in fp32.
    """

    device = "hpu"
    """What it autocasts on, under the name that Lightning's plugins have for it."""

    def __init__(
        self, precision: PrecisionName | Literal["32", "bf16"] = "32-true", device: str = "hpu"
    ) -> None:
        """Choose the precision.

        Args:
            precision: One of the above; `"32"` is short for `"32-true"`, `"bf16"` for
                `"bf16-mixed"`.
            device: `"hpu"`, as it may be given to Lightning's own plugins.

        Raises:
            MisconfigurationException: HPU does not support it, or it is for another device.
            ValueError: A file with autocast's operations would silently not be obeyed.
        """
        check_device(self, device)
        name = SHORT.get(precision, precision)
        if name not in SUPPORTED:
            raise MisconfigurationException(unsupported(f"precision={precision!r}"))
        if name == "bf16-mixed":
            check_op_lists()
        self.precision = cast("PrecisionName", name)
        self._dtype = torch.bfloat16 if name == "bf16-true" else torch.float32

    @override
    def convert_module(self, module: Module) -> Module:
        """Bring the weights into the precision they are held in."""
        return module.to(dtype=self._dtype) if self._holds_bf16 else module

    @override
    def convert_input(self, data: Any) -> Any:
        """Bring floating-point tensors of a batch into the precision they are computed in."""
        if not self._holds_bf16:
            return data
        return apply_to_collection(data, Tensor, _convert_fp_tensor, dst_type=self._dtype)

    @override
    def convert_output(self, data: Any) -> Any:
        """Bring floating-point outputs of Fabric's modules into the default dtype."""
        if self.precision == "32-true":
            return data
        dtype = torch.get_default_dtype()
        return apply_to_collection(data, Tensor, _convert_fp_tensor, dst_type=dtype)

    @override
    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """New floating-point tensors have the precision of the weights."""
        return _DtypeContextManager(self._dtype) if self._holds_bf16 else nullcontext()

    @override
    def module_init_context(self) -> AbstractContextManager[Any]:
        """New weights have the precision they are held in."""
        return self.tensor_init_context()

    @override
    @contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        """The model's forward: autocast on the HPU, or bf16 as the default dtype."""
        if self.precision == "bf16-mixed":
            with torch.autocast("hpu", dtype=torch.bfloat16, cache_enabled=False):
                yield
        else:
            with self.tensor_init_context():
                yield

    @property
    def _holds_bf16(self) -> bool:
        return self.precision == "bf16-true"


def check_device(plugin: Precision, device: str) -> None:
    """Refuse to be a plugin for another device than the HPU.

    Args:
        plugin: One of ours.
        device: The argument of that name, which some of Lightning's own plugins have.

    Raises:
        MisconfigurationException: It is another one.
    """
    if device != "hpu":
        raise MisconfigurationException(
            f"{type(plugin).__name__}(device={device!r}) computes on HPUs alone. Leave device "
            "out, or take Lightning's own plugin for another device."
        )


def check_precision_plugin(plugin: Precision) -> None:
    """Refuse one of Lightning's own precision plugins that does not do on an HPU what it says.

    Raises:
        MisconfigurationException: It is for another device, or a precision HPU does not support.
    """
    kind = type(plugin)
    if not kind.__module__.startswith(("lightning.pytorch.", "lightning.fabric.")):
        return
    device = getattr(plugin, "device", "hpu")
    if kind.__name__ not in _PORTABLE:
        typed = f"{kind.__name__}()"
    elif plugin.precision not in SUPPORTED or device != "hpu":
        typed = f"{kind.__name__}(precision={plugin.precision!r}, device={device!r})"
    else:
        return
    raise MisconfigurationException(unsupported(f"plugins={typed}"))


def unsupported(setting: str, supported: Iterable[str] = SUPPORTED) -> str:
    """What to say of a precision that HPU does not support.

    Args:
        setting: What was typed.
        supported: What may be passed instead.
    """
    return (
        f"{setting} is not supported with accelerator='hpu'. HPU supports precision="
        f"{', '.join(map(repr, supported))}: pass one of these instead."
    )
