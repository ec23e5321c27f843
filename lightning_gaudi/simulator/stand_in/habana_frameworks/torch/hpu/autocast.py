"""Offers the vendor's names for the state of `torch.autocast("hpu")`."""

from __future__ import annotations

import torch

from ..._missing import missing


def set_autocast_hpu_enabled(enabled: bool) -> None:
    """Switches autocast on or off."""
    torch.set_autocast_enabled("hpu", enabled)


def is_autocast_hpu_enabled() -> bool:
    """Returns whether autocast is on."""
    return torch.is_autocast_enabled("hpu")


def set_autocast_hpu_dtype(dtype: torch.dtype) -> None:
    """Sets the lower precision."""
    torch.set_autocast_dtype("hpu", dtype)


def get_autocast_hpu_dtype() -> torch.dtype:
    """Returns the lower precision."""
    return torch.get_autocast_dtype("hpu")


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the lower precisions that autocast accepts."""
    return [torch.bfloat16, torch.float16]


__getattr__ = missing(__name__)
