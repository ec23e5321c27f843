"""Batches of any size: on a dry card only their shapes count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any

from torch import Tensor


def size_of(batch: Any) -> int:
    """How many samples a batch has: the first dim of most of its tensors; 0 if none."""
    found = Counter(each.shape[0] for each in _tensors(batch) if each.dim())
    return found.most_common(1)[0][0] if found else 0


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    for each in _parts(value):
        yield from _tensors(each)


def _parts(value: Any) -> Sequence[Any]:
    """What a batch may have its tensors in; transformers has mappings of its own."""
    if isinstance(value, Mapping):
        return [*value.values()]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return value if isinstance(value, (list, tuple)) else ()


LOOKED_AT = 64
"""Batches of a loader, of which the one with most elements is planned with: where they come in
buckets of lengths, the first is seldom the largest."""
_LOOK_S = 5.0
"""For how long at most: a loader may be slow."""


class Repeated:
    """A loader whose largest batch comes again and again, as it is or in another size.

    Args:
        loader: What it has, this one has.
        batch_size: Of all batches; None for that of the largest.
    """

    def __init__(self, loader: Any, batch_size: int | None) -> None:
        self._loader, self._batch_size = loader, batch_size

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that has not got it yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return 2**20

    def __iter__(self) -> Iterator[Any]:
        largest = max(self._first(), key=_num_elements, default=None)
        while largest is not None:
            # Each its own: hooks change them in place.
            yield _resized(largest, self._batch_size or size_of(largest))

    def _first(self) -> Iterator[Any]:
        end = time.monotonic() + _LOOK_S
        for batch in islice(self._loader, LOOKED_AT):
            yield batch
            if time.monotonic() > end:
                return


def _num_elements(batch: Any) -> int:
    return sum(each.numel() for each in _tensors(batch))


def _resized(batch: Any, size: int) -> Any:
    """A batch of its first sample, many times: rows of tensors, and items of plain lists."""
    before = size_of(batch)

    def resize(value: Any) -> Any:
        if isinstance(value, Tensor):
            is_whole = not value.dim() or value.shape[0] != before
            return value if is_whole else value[:1].expand(size, *value.shape[1:]).contiguous()
        parts = _parts(value)
        if not parts:
            return value
        is_list = type(value) in (list, tuple)
        if is_list and len(parts) == before and next(_tensors(value), None) is None:
            return value[:1] * size
        resized = [resize(each) for each in parts]
        if isinstance(value, Mapping):
            return type(value)(dict(zip(value, resized, strict=True)))  # type: ignore[call-arg]
        if is_list:
            return type(value)(resized)
        if isinstance(value, (list, tuple)):  # of a type of its own, as a rule a named tuple
            return type(value)(*resized)
        names = [field.name for field in fields(value)]
        return replace(value, **dict(zip(names, resized, strict=True)))

    return resize(batch)
