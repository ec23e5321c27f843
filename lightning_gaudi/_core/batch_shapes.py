"""Finds the tensors of a batch and their shapes, which the host knows without the card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of every tensor of a batch."""


def named_tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields tensors of a batch, and its numbers, by names such as "inputs.ids" or "[0]"."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from named_tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        for index, value in enumerate(batch):
            yield from named_tensors(value, f"{name}[{index}]")
    elif isinstance(batch, (Tensor, int)):
        yield name or "batch", batch


def shapes_of(batch: Any) -> Shapes:
    """Returns name and shape of every tensor, without waiting for their values."""
    return tuple(
        (name, tuple(value.shape))
        for name, value in named_tensors(batch)
        if isinstance(value, Tensor)
    )
