"""What Lightning's `ThroughputMonitor` must know of an HPU: the dtype it computes in, and its peak.

Lightning looks both up by the kind of device and of plugin, and has no entry for ours.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from lightning_gaudi._core import vendor

from .precision import HPUPrecision

_MARK = "_lightning_gaudi_is_patched"

BF16_PEAKS: dict[str, int] = {
    "GAUDI": 60 * 10**12,
    "GAUDI2": 432 * 10**12,
    "GAUDI3": 1835 * 10**12,
}
"""FLOP/s of matrix multiplications in bf16, by the vendor's device name.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024.
"""


def patch_throughput(module: ModuleType) -> None:
    """Add ours to a module of Lightning's that asks; doing it again is harmless.

    Args:
        module: Lightning's `fabric.utilities.throughput`, or `callbacks.throughput_monitor`.
    """
    for name, wrap in (
        ("get_available_flops", _wrap_available_flops),
        ("_plugin_to_compute_dtype", _wrap_compute_dtype),
    ):
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, _MARK):
            wrapped = wrap(original)
            setattr(wrapped, _MARK, True)
            setattr(module, name, wrapped)


def available_flops(dtype: torch.dtype | str) -> int | None:
    """The peak of this process's card in `dtype`, in FLOP/s; None where none is published."""
    is_bf16 = dtype in (torch.bfloat16, "bfloat16", "bf16")
    return BF16_PEAKS.get(vendor.device_name()) if is_bf16 else None


def _wrap_available_flops(original: Any) -> Any:
    @functools.wraps(original)
    def get_available_flops(device: torch.device, dtype: torch.dtype | str) -> int | None:
        if device.type == "hpu":
            return available_flops(dtype)
        flops: int | None = original(device, dtype)
        return flops

    return get_available_flops


def _wrap_compute_dtype(original: Any) -> Any:
    @functools.wraps(original)
    def plugin_to_compute_dtype(plugin: Any) -> torch.dtype:
        if isinstance(plugin, HPUPrecision):
            return torch.bfloat16 if plugin.precision.startswith("bf16") else torch.float32
        dtype: torch.dtype = original(plugin)
        return dtype

    return plugin_to_compute_dtype
