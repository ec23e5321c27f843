"""Joins tensors that lie one behind the other in one memory, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """Returns one-dimensional tensors as one view, or None if there is anything between them."""
    ends = [part.storage_offset() + part.numel() for part in parts[:-1]]
    begins = [part.storage_offset() for part in parts[1:]]
    memories = {part.untyped_storage().data_ptr() for part in parts}
    if ends != begins or len(memories) != 1 or not all(part.is_contiguous() for part in parts):
        return None
    return parts[0].as_strided((sum(part.numel() for part in parts),), (1,))
