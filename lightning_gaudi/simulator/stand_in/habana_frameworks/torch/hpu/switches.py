"""Switches of the device's compiler and kernels.

The simulated HPU keeps their values and has nothing for them to switch, except `sdp_kernel`,
which chooses between FusedSDPA's two algorithms.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

from ..._missing import missing

_TRUE = ("1", "true", "yes", "on")
_values = {
    "deterministic": False,
    "dynamic_shape": os.environ.get("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", "0").lower() in _TRUE,
    "recompute_sdp": True,
}


def setDeterministic(val: bool) -> None:  # noqa: N802 (the vendor's name)
    """Deprecated: `torch.use_deterministic_algorithms`."""
    _warn_deprecated("setDeterministic", "use_deterministic_algorithms")
    _values["deterministic"] = bool(val)


def getDeterministic() -> bool:  # noqa: N802 (the vendor's name)
    """Deprecated: `torch.are_deterministic_algorithms_enabled`."""
    _warn_deprecated("getDeterministic", "are_deterministic_algorithms_enabled")
    return _values["deterministic"]


def _warn_deprecated(old: str, new: str) -> None:
    warnings.warn(f"torch.hpu.{old} is deprecated: use torch.{new}.", stacklevel=3)


def enable_dynamic_shape() -> None:
    """Allow graphs with sizes known only when they run."""
    _values["dynamic_shape"] = True


def disable_dynamic_shape() -> None:
    """Compile a graph for every set of sizes."""
    _values["dynamic_shape"] = False


def get_dynamic_shape_status() -> bool:
    """Whether graphs may have sizes known only when they run.

    The graph counts of the simulated HPU are those of static shapes either way.
    """
    return _values["dynamic_shape"]


def enable_recompute_sdp(enabled: bool) -> None:
    """Whether FusedSDPA computes attention again in the backward pass instead of keeping it."""
    _values["recompute_sdp"] = bool(enabled)


def recompute_sdp_enabled() -> bool:
    """Whether FusedSDPA computes attention again in the backward pass."""
    return _values["recompute_sdp"]


@contextlib.contextmanager
def sdp_kernel(enable_recompute: bool = True) -> Iterator[dict[str, object]]:
    """Choose whether FusedSDPA recomputes, within a `with` block."""
    before = recompute_sdp_enabled()
    enable_recompute_sdp(enable_recompute)
    try:
        yield {}
    finally:
        enable_recompute_sdp(before)


def enable_optim_output_sif() -> None:
    """Infer output shapes of dynamic graphs in an optimised way; nothing to switch here."""


def disable_optim_output_sif() -> None:
    """Undo `enable_optim_output_sif`."""


def enable_inference_mode() -> None:
    """Let graphs assume inference; nothing to switch here."""


def disable_inference_mode() -> None:
    """Undo `enable_inference_mode`."""


def enable_matmul3d_2d_reshape() -> None:
    """Let graphs flatten three-dimensional products; nothing to switch here."""


def disable_matmul3d_2d_reshape() -> None:
    """Undo `enable_matmul3d_2d_reshape`."""


__getattr__ = missing(__name__)
