"""Batches of any size: on a dry card only their shapes count."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor


def size_of(batch: Any) -> int:
    """Counts a batch's samples: the first dim of most of its tensors; 0 if it tells nothing.

    Where it has no tensor, that is the length of most of its lists.
    """
    found = Counter(each.shape[0] for each in _tensors(batch) if each.dim())
    found = found or Counter(_lengths(batch))
    return found.most_common(1)[0][0] if found else 0


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    for each in _parts(value):
        yield from _tensors(each)


def _lengths(value: Any) -> Iterator[int]:
    """Yields lengths of the innermost lists: torch's collate makes a list of columns of texts."""
    parts = _parts(value)
    if type(value) in (list, tuple) and not any(isinstance(each, _CONTAINERS) for each in parts):
        yield len(parts)
    for each in parts:
        if isinstance(each, _CONTAINERS):
            yield from _lengths(each)


def _parts(value: Any) -> Sequence[Any]:
    """Returns what a batch may have its tensors in; transformers has mappings of its own."""
    if isinstance(value, Mapping):
        return [*value.values()]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return value if isinstance(value, (list, tuple)) else ()


_CONTAINERS = (Mapping, list, tuple)

LOOKED_AT = 64
"""Batches of a loader, of which the one with most elements is planned with: where they come in
buckets of lengths, the first is seldom the largest."""
_LOOK_S = 5.0
"""For how long at most: a loader may be slow."""
NUM_STEPS = 3
"""Of the optimizer, or batches where nothing is trained, that a rehearsal takes."""
_EVALUATE_S = 2.0
"""For how long at most an evaluation goes on behind them: one may write long texts."""


_MAX_OTHERS = 7
"""Shapes beside the largest batch's that come, too: more are no buckets."""


class _Looked(NamedTuple):
    """What was found in a loader."""

    largest: Any
    """None of one that has no batch."""
    before: list[Any]
    """A batch of each other shape that the loader has before a largest one, in its order."""
    behind: list[Any]
    """Of those that come behind the last largest one."""


class Repeated:
    """A loader whose largest batch comes again and again, as it is or in another size.

    Args:
        loader: What it has, this one has.
        batch_size: Of all batches; None for that of the largest.
        limit: The Trainer's, of an evaluation's batches, a number or a share: so many come, for
            what is gathered of them takes memory; None where as many come as are asked for.
        has_others: Whether a batch of each other shape comes, too, before the largest or behind it
            as in the loader: what runs without gradients may keep something for each from then on,
            as `TextGenerator` does its caches and graphs.
    """

    def __init__(
        self,
        loader: Any,
        batch_size: int | None,
        limit: float | None = None,
        *,
        has_others: bool = False,
    ) -> None:
        self._loader, self._batch_size, self._limit = loader, batch_size, limit
        num_others = _MAX_OTHERS if has_others else 0
        if isinstance(limit, int):
            num_others = min(num_others, max(limit - NUM_STEPS, 0))
        self._num_shapes = 1 + num_others
        self._looked_at: _Looked | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that has not got it yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        limit = self._limit
        if limit is None:
            return 2**20
        wanted = self._num_wanted(limit)  # of a share the Trainer takes so many
        return math.ceil(wanted / limit) if isinstance(limit, float) else wanted

    def _num_wanted(self, limit: float) -> int:
        """Returns how many batches an evaluation takes."""
        try:
            num_batches: float = len(self._loader)
        except (TypeError, NotImplementedError):  # of one without an end
            num_batches = LOOKED_AT
        if self._batch_size is not None:
            num_batches *= size_of(self._look().largest) / self._batch_size
        num_batches = num_batches * limit if isinstance(limit, float) else min(num_batches, limit)
        return max(self.num_others + NUM_STEPS, min(math.ceil(num_batches), LOOKED_AT))

    @property
    def num_before(self) -> int:
        """Batches that come before the largest one."""
        return len(self._look().before)

    @property
    def num_others(self) -> int:
        """Batches of other shapes, before the largest and behind it."""
        return len(self._look().before) + len(self._look().behind)

    def __iter__(self) -> Iterator[Any]:
        found = self._look()
        if found.largest is None:
            return
        yield from map(self._sized, found.before)
        num_largest = NUM_STEPS if self._num_shapes > 1 else len(self)
        if self._limit is not None:
            num_largest = self._num_wanted(self._limit) - self.num_others
        end = time.monotonic() + _EVALUATE_S
        for number in range(num_largest):
            if self._limit is not None and number >= NUM_STEPS and time.monotonic() > end:
                break
            # Each its own: hooks change them in place.
            yield self._sized(found.largest)
        yield from map(self._sized, found.behind)

    def _look(self) -> _Looked:
        """Looks at the first batches: one of each shape to come, where that is wanted."""
        if self._looked_at is None:
            first: dict[Any, tuple[int, Any]] = {}
            last: dict[Any, int] = {}
            for number, batch in enumerate(self._first()):
                shape = _shapes(batch, self._batch_size)
                first.setdefault(shape, (number, batch))
                last[shape] = number
                if len(first) > self._num_shapes:
                    # The last of those that are as small: the first of the largest stays.
                    sizes = {each: _num_elements(first[each][1]) for each in reversed(first)}
                    del first[min(sizes, key=lambda each: sizes[each])]
            largest = max(first, key=lambda each: _num_elements(first[each][1]), default=None)
            others = [found for shape, found in first.items() if shape != largest]
            end = last[largest] if largest is not None else 0
            self._looked_at = _Looked(
                None if largest is None else first[largest][1],
                [batch for number, batch in others if number < end],
                [batch for number, batch in others if number > end],
            )
        return self._looked_at

    def _sized(self, batch: Any) -> Any:
        return _resized(batch, self._batch_size or size_of(batch))

    def _first(self) -> Iterator[Any]:
        end = time.monotonic() + _LOOK_S
        for batch in islice(self._loader, LOOKED_AT):
            yield batch
            if time.monotonic() > end:
                return


def _shapes(batch: Any, size: int | None) -> tuple[Any, ...]:
    """Returns the shapes of its tensors for so many samples; None stands for as many as it has."""
    before = size_of(batch)
    return tuple(
        (size or before, *each.shape[1:]) if each.dim() and each.shape[0] == before else each.shape
        for each in _tensors(batch)
    )


def _num_elements(batch: Any) -> int:
    return sum(each.numel() for each in _tensors(batch))


def _resized(batch: Any, size: int) -> Any:
    """Gives a batch of its first sample, many times: rows of tensors, and items of plain lists."""
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
