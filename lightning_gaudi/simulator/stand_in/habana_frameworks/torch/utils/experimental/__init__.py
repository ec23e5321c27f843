"""Offers queries of device type and precision, and tools that find changing shapes."""

from __future__ import annotations

import torch

from ...._missing import missing
from ..._binding import C
from ..._device_type import _get_device_type, synDeviceType
from . import distributed_emulation
from .data_shapes import const_shape_dataloader, data_dynamicity
from .detect_recompilation import detect_recompilation_auto_model

__all__ = [
    "const_shape_dataloader",
    "data_dynamicity",
    "detect_recompilation_auto_model",
    "distributed_emulation",
    "synDeviceType",
]

_is_dynamic_quantization = False


def _is_available() -> bool:
    """Returns whether there is a card."""
    return bool(C.device_count() > 0)


def _data_ptr(t: torch.Tensor) -> int:
    """Returns the address of a tensor's memory; 0 where it has none."""
    return t.data_ptr()


def _compute_stream() -> int:
    """Returns the number of the stream that work goes to."""
    return torch.accelerator.current_stream(torch.device("hpu", 0)).stream_id


def _is_fp16_supported() -> bool:
    """Returns whether the card computes in half precision, which all but the first Gaudi do.

    The vendor's always says yes since 1.22, which does not support the first Gaudi any more.
    """
    return _get_device_type() != synDeviceType.synDeviceGaudi


def _is_model_param_initialized() -> bool:
    """Returns whether the profiler was told which memory is a model's: it is not."""
    return False


def _is_optim_state_initialized() -> bool:
    """Returns whether the profiler was told which memory is an optimizer's: it is not."""
    return False


def _get_is_dynamic_quantization() -> bool:
    """Returns what `_set_is_dynamic_quantization` set; False before."""
    return _is_dynamic_quantization


def _set_is_dynamic_quantization(is_dynamic_quantization: bool) -> None:
    """Says whether scales of fp8 are computed while a graph runs, which a compiler has to know.

    Here it changes nothing: the scales that are computed so come from an operator
    (`hpu::calculate_scale_for_cast`), which refuses.
    """
    global _is_dynamic_quantization
    _is_dynamic_quantization = bool(is_dynamic_quantization)


def _get_scale_attribute_hash_id() -> int:
    """Returns the number of the way in which scales of fp8 are computed: none."""
    return 0


def _reset_device_memory() -> None:
    """Does nothing: no memory is cached that could be given back to the driver."""


def _set_profiler_tracer_memory(device_id: int) -> None:
    """Does nothing: the simulated HPU has no profiler that could trace memory."""


__getattr__ = missing(__name__)
