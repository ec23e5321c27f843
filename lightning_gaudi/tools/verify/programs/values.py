"""Makes tensors for the programs: on the CPU from one seed, and then moved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch

_kept: dict[Hashable, torch.Tensor] | None = None


@contextmanager
def kept() -> Iterator[None]:
    """Moves each tensor once in this block, so that programs that run again copy nothing."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def _moved(key: Hashable, make: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    if _kept is None:
        return make().to(device)
    if (key, device) not in _kept:
        _kept[key, device] = make().to(device)
    return _kept[key, device]


def uniform(*shape: int, device: torch.device) -> torch.Tensor:
    """Returns float32 values in [0, 1), the same on every call."""
    generator = torch.Generator().manual_seed(0)
    return _moved(shape, lambda: torch.rand(shape, generator=generator), device)


def positive(*shape: int, device: torch.device) -> torch.Tensor:
    """Returns float32 values in [1, 2)."""
    return uniform(*shape, device=device) + 1


def symmetric(size: int, *, device: torch.device) -> torch.Tensor:
    """Returns a positive definite matrix of float32."""
    root = uniform(size, size, device=device)
    return root @ root.T + _moved(("eye", size), lambda: torch.eye(size), device)


def on(device: torch.device, values: object) -> torch.Tensor:
    """Returns what `torch.tensor` makes of `values`, on `device`."""
    return _moved(repr(values), lambda: torch.tensor(values), device)
