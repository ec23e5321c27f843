"""Batches of any size: on a dry card only their shapes count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def size_of(batch: Any) -> int:
    """How many samples a batch has: the first dim of its tensors; 0 where there are none."""
    leaves = tree_leaves(batch)
    tensors = (each for each in leaves if isinstance(each, Tensor) and each.dim())
    return max((each.shape[0] for each in tensors), default=0)


class Resized:
    """Gives the first batch of a loader again and again, with another number of samples."""

    def __init__(self, loader: Any, batch_size: int) -> None:
        self.loader, self.batch_size = loader, batch_size

    def __len__(self) -> int:
        return 2**20

    def __iter__(self) -> Iterator[Any]:
        batch = next(iter(self.loader))
        before = size_of(batch)

        def resize(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != before:
                return value
            return value[:1].expand(self.batch_size, *value.shape[1:]).contiguous()

        resized = tree_map(resize, batch)
        while True:
            yield resized
