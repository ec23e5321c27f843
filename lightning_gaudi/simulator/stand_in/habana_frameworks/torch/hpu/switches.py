"""Keeps the switches of the device's compiler and kernels.

They have nothing to switch on the simulated HPU, except `sdp_kernel`, which chooses between
FusedSDPA's two algorithms.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

from ..._missing import missing, not_simulated

_TRUE = ("1", "true", "yes", "on")
_values = {
    "deterministic": False,
    "dynamic_shape": os.environ.get("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", "0").lower() in _TRUE,
    "inference_mode": os.environ.get("PT_HPU_INFERENCE_MODE", "0").lower() in _TRUE,
    "mark_non_scale_const": False,
    "mark_scale_const": False,
    "matmul3d_2d_reshape": os.environ.get("PT_HPU_MATMUL3D_2D_RESHAPE", "0").lower() in _TRUE,
    "recompute_sdp": True,
}


def setDeterministic(val: bool) -> None:  # noqa: N802 (the vendor's name)
    """Sets a switch in whose place `torch.use_deterministic_algorithms` has come."""
    _warn_deprecated("setDeterministic", "use_deterministic_algorithms")
    _values["deterministic"] = bool(val)


def getDeterministic() -> bool:  # noqa: N802 (the vendor's name)
    """Returns the switch that `torch.are_deterministic_algorithms_enabled` has replaced."""
    _warn_deprecated("getDeterministic", "are_deterministic_algorithms_enabled")
    return _values["deterministic"]


def _warn_deprecated(old: str, new: str) -> None:
    warnings.warn(f"torch.hpu.{old} is deprecated: use torch.{new}.", stacklevel=3)


def enable_dynamic_shape() -> None:
    """Allows graphs with sizes known only when they run."""
    _values["dynamic_shape"] = True


def disable_dynamic_shape() -> None:
    """Compiles a graph for every set of sizes."""
    _values["dynamic_shape"] = False


def get_dynamic_shape_status() -> bool:
    """Returns whether graphs may have sizes known only when they run.

    The graph counts of the simulated HPU are those of static shapes either way.
    """
    return _values["dynamic_shape"]


def enable_recompute_sdp(enabled: bool) -> None:
    """Sets whether FusedSDPA computes attention again in the backward pass."""
    _values["recompute_sdp"] = bool(enabled)


def recompute_sdp_enabled() -> bool:
    """Returns whether FusedSDPA computes attention again in the backward pass."""
    return _values["recompute_sdp"]


@contextlib.contextmanager
def sdp_kernel(enable_recompute: bool = True) -> Iterator[dict[str, object]]:
    """Chooses whether FusedSDPA recomputes, within a `with` block."""
    before = recompute_sdp_enabled()
    enable_recompute_sdp(enable_recompute)
    try:
        yield {}
    finally:
        enable_recompute_sdp(before)


def set_sync_debug_mode(debug_mode: object) -> None:
    """Sets whether streams of processes that start later work asynchronously; here none does."""
    os.environ["PT_ENABLE_HABANA_STREAMASYNC"] = str(debug_mode)


def get_sync_debug_mode() -> int:
    """Returns what `set_sync_debug_mode` was given, as a number."""
    return int(os.environ["PT_ENABLE_HABANA_STREAMASYNC"])


def enable_optim_output_sif() -> None:
    """Does nothing; on a card it has output shapes of dynamic graphs inferred in another way."""


def disable_optim_output_sif() -> None:
    """Undoes `enable_optim_output_sif`."""


def enable_inference_mode() -> None:
    """Lets graphs assume inference, which changes no result."""
    _values["inference_mode"] = True


def disable_inference_mode() -> None:
    """Undoes `enable_inference_mode`."""
    _values["inference_mode"] = False


def is_inference_mode_enabled() -> bool:
    """Returns whether graphs may assume inference."""
    return _values["inference_mode"]


def enable_matmul3d_2d_reshape() -> None:
    """Lets graphs flatten three-dimensional products, which changes no result."""
    _values["matmul3d_2d_reshape"] = True


def disable_matmul3d_2d_reshape() -> None:
    """Undoes `enable_matmul3d_2d_reshape`."""
    _values["matmul3d_2d_reshape"] = False


def is_matmul3d_2d_reshape_enabled() -> bool:
    """Returns whether graphs flatten three-dimensional products."""
    return _values["matmul3d_2d_reshape"]


def enable_quantization() -> None:
    """Lets graphs quantize.

    Raises:
        NotSimulatedError: Always: results would be those of fp8.
    """
    raise not_simulated(
        "torch.hpu.enable_quantization()",
        "The simulated HPU turns no graph of bf16 into one of fp8.",
    )


def disable_quantization() -> None:
    """Undoes `enable_quantization`: nothing is quantized."""


def set_mark_scale_const(mark: bool) -> None:
    """Sets whether scales of quantization are constants of a graph, which changes no result."""
    _values["mark_scale_const"] = bool(mark)


def set_mark_non_scale_const(mark: bool) -> None:
    """Sets whether other weights are constants of a graph, which changes no result."""
    _values["mark_non_scale_const"] = bool(mark)


def enable_const_section_serialization(path: str, clear_path: bool, use_compression: bool) -> None:
    """Does nothing: there are no constants of compiled graphs that could be written."""


def disable_const_section_serialization() -> None:
    """Undoes `enable_const_section_serialization`."""


__getattr__ = missing(__name__)
