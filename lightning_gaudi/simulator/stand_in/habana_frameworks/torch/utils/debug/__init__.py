"""Debugging hooks that training code calls; most of the vendor's need a real graph compiler."""

from __future__ import annotations

from ...._missing import missing
from ..._binding import C


def _get_fallback_op_count() -> dict[str, int]:
    """Operations that the device sent to the CPU: name to count."""
    return dict(C.fallback_stats())


def _set_module_name(name: str = "") -> None:
    """Name the module that runs, for graph dumps; the simulator writes none."""


def _enable_fuse_conv_bn_optimization(flag: bool) -> None:
    """Fuse convolution and batch norm in graphs; the simulator runs operations one by one."""


__getattr__ = missing(__name__)
