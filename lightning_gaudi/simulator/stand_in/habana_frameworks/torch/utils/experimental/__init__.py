"""Device type and precision queries, and tools that find changing shapes."""

from __future__ import annotations

from ...._missing import missing
from ..._device_type import _get_device_type, synDeviceType
from .data_shapes import const_shape_dataloader, data_dynamicity
from .detect_recompilation import detect_recompilation_auto_model

__all__ = [
    "const_shape_dataloader",
    "data_dynamicity",
    "detect_recompilation_auto_model",
    "synDeviceType",
]


def _is_fp16_supported() -> bool:
    """Whether the card computes in half precision: every generation but the first."""
    return _get_device_type() != synDeviceType.synDeviceGaudi


def _set_profiler_tracer_memory(device_id: int) -> None:
    """Trace memory in the profiler; the simulated HPU has no profiler."""


__getattr__ = missing(__name__)
