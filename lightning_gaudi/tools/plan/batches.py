"""Batches of any size, of the samples that a loader has.

On a dry card the shapes of a batch count, and the values of what is small, or of integers: labels,
lengths, masks. So rows are those of the loader again and again, and large rows of other types are
left as zeros, which take no memory. A batch whose tensors do not all have a row a sample (a graph's
nodes, as many boxes as a picture has) is put together anew by the loader's own `collate_fn`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader


def size_of(batch: Any, of_loader: int | None = None) -> int:
    """Counts a batch's samples: the first dim of most of its tensors; 0 if it tells nothing.

    Where it has no tensor, that is the length of most of its lists. If its loader says how many it
    gives, and some tensor or list has so many, that is the number.
    """
    if of_loader is not None and of_loader in (*_first_dims(batch), *_lengths(batch)):
        return of_loader
    found = Counter(_first_dims(batch))
    found = found or Counter(_lengths(batch))
    return found.most_common(1)[0][0] if found else 0


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    for each in _parts(value):
        yield from _tensors(each)


def _first_dims(batch: Any) -> list[int]:
    return [each.shape[0] for each in _tensors(batch) if each.dim()]


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
    fullest: Any
    """Of the same number of samples that with the least padding, where there is another one."""
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
        least: So many of an evaluation's largest batches come, however long they take.
    """

    def __init__(
        self,
        loader: Any,
        batch_size: int | None,
        limit: float | None = None,
        *,
        has_others: bool = False,
        least: int = NUM_STEPS,
    ) -> None:
        self._loader, self._batch_size, self._limit = loader, batch_size, limit
        self._of_loader = batch_size_of(loader)
        self._collate: Callable[[int], Any] | None = None
        num_others = _MAX_OTHERS if has_others else 0
        if isinstance(limit, int):
            num_others = min(num_others, max(limit - NUM_STEPS, 0))
        self._num_shapes = 1 + num_others
        self._least = least
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
            num_batches *= self._size_of(self._look().largest) / self._batch_size
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
        is_in_training = self._num_shapes == 1 and self._limit is None
        batches = [found.largest, found.fullest if is_in_training else found.largest]
        if self._limit is not None:
            num_largest = self._num_wanted(self._limit) - self.num_others
        end = time.monotonic() + _EVALUATE_S
        for number in range(num_largest):
            if self._limit is not None and number >= self._least and time.monotonic() > end:
                break
            # Each its own: hooks change them in place. The second step has all that the others
            # have, and is not the one that is looked into.
            yield self._sized(batches[number % NUM_STEPS == 1])
        yield from map(self._sized, found.behind)

    def _look(self) -> _Looked:
        """Looks at the first batches: one of each shape to come, where that is wanted."""
        if self._looked_at is None:
            first: dict[Any, tuple[int, Any, int]] = {}
            last: dict[Any, int] = {}
            fullest: dict[int, tuple[int, Any]] = {}
            for number, batch in enumerate(self._first()):
                size, num_full = self._size_of(batch), _num_full(batch)
                shape = _shapes(batch, self._batch_size, size)
                if shape not in first or num_full > first[shape][2]:
                    first[shape] = (first[shape][0] if shape in first else number, batch, num_full)
                if size not in fullest or num_full > fullest[size][0]:
                    fullest[size] = (num_full, batch)
                last[shape] = number
                if len(first) > self._num_shapes:
                    # The last of those that are as small: the first of the largest stays.
                    sizes = {each: _num_elements(first[each][1]) for each in reversed(first)}
                    del first[min(sizes, key=lambda each: sizes[each])]
            largest = max(first, key=lambda each: _num_elements(first[each][1]), default=None)
            others = [found for shape, found in first.items() if shape != largest]
            end = last[largest] if largest is not None else 0
            _, batch, num_full = first.get(largest, (0, None, 0))
            most_full, other = fullest.get(self._size_of(batch), (0, batch))
            self._looked_at = _Looked(
                batch,
                other if most_full > num_full else batch,
                [batch for number, batch, _ in others if number < end],
                [batch for number, batch, _ in others if number > end],
            )
        return self._looked_at

    def _size_of(self, batch: Any) -> int:
        return size_of(batch, self._of_loader)

    def _sized(self, batch: Any) -> Any:
        before = self._size_of(batch)
        size = self._batch_size or before
        if size == before or _has_rows(batch, before):
            return _resized(batch, before, size)
        if self._collate is None:
            self._collate = _collating(self._loader) or (lambda n: _resized(batch, before, n))
        return self._collate(size)

    def _first(self) -> Iterator[Any]:
        end = time.monotonic() + _LOOK_S
        for batch in islice(self._loader, LOOKED_AT):
            yield batch
            if time.monotonic() > end:
                return


def batch_size_of(loader: Any) -> int | None:
    """Returns how many samples a loader says that its batches have; None if it says nothing."""
    found = getattr(loader, "batch_size", None)
    return found if isinstance(found, int) else None


def _has_rows(batch: Any, size: int) -> bool:
    """Returns whether each of its tensors has a row a sample, and each list without one an item."""
    dims = _first_dims(batch)
    return all(each == size for each in (dims or _lengths(batch)))


def _collating(loader: Any) -> Callable[[int], Any] | None:
    """Returns what makes a batch of any size of a loader's samples; None if it has none to give.

    The samples are those of the batch with most elements among the first of it.
    """
    loader = getattr(loader, "loader", loader)
    if not isinstance(loader, DataLoader) or loader.collate_fn is None:
        return None
    if loader.batch_size is None and loader.batch_sampler is None:
        return None  # its data set gives whole batches
    end = time.monotonic() + _LOOK_S
    most, samples = -1, list[Any]()
    for found in islice(_samples(loader), LOOKED_AT):
        num_elements = _num_elements(loader.collate_fn(found))
        if num_elements > most:
            most, samples = num_elements, found
        if time.monotonic() > end:
            break
    if not samples:
        return None
    return lambda size: loader.collate_fn([samples[n % len(samples)] for n in range(size)])


def _samples(loader: DataLoader[Any]) -> Iterator[list[Any]]:
    """Yields the samples of each batch, before they are put together."""
    dataset: Any = loader.dataset
    if loader.batch_sampler is not None and hasattr(dataset, "__getitem__"):
        for indices in loader.batch_sampler:
            yield [dataset[index] for index in indices]
        return
    rows = iter(dataset)
    while found := list(islice(rows, loader.batch_size)):
        yield found


def _shapes(batch: Any, size: int | None, before: int) -> tuple[Any, ...]:
    """Returns the shapes of its tensors for so many samples; None stands for as many as it has."""
    return tuple(
        (size or before, *each.shape[1:]) if each.dim() and each.shape[0] == before else each.shape
        for each in _tensors(batch)
    )


def _num_elements(batch: Any) -> int:
    return sum(each.numel() for each in _tensors(batch))


def _num_full(batch: Any) -> int:
    """Counts what is not zero of its integers and booleans, as padding is in ids and masks."""
    whole = (each for each in _tensors(batch) if not each.is_floating_point())
    return sum(int(each.count_nonzero()) for each in whole)


_MOST_BYTES = 2**24
"""Of integers and booleans that a dry card has the values of."""
_MOST_FLOAT_BYTES = 2**20
"""Of all else; see the simulator's `runtime/dry.h`."""


def _resized(batch: Any, before: int, size: int) -> Any:
    """Gives a batch of its samples, again and again: rows of tensors, and items of plain lists."""

    def resize(value: Any) -> Any:
        if isinstance(value, Tensor):
            is_row = value.dim() > 0 and value.shape[0] == before
            return _rows(value, before, size) if is_row else value
        parts = _parts(value)
        if not parts:
            return value
        is_list = type(value) in (list, tuple)
        if is_list and len(parts) == before and before not in _first_dims(value):
            return type(value)(resize(value[number % before]) for number in range(size))
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


def _rows(value: Tensor, before: int, size: int) -> Tensor:
    """Gives rows of a tensor, in memory of their own: hooks change batches in place."""
    if size == before:
        return value.clone()
    shape = (size, *value.shape[1:])
    is_of_integers = value.dtype in (torch.int64, torch.int32, torch.bool)
    most = _MOST_BYTES if is_of_integers else _MOST_FLOAT_BYTES
    num_bytes = math.prod(shape) * value.element_size()
    if num_bytes <= most or not value.is_contiguous() or value.device.type != "cpu":
        return value[torch.arange(size, device=value.device) % before]
    # The system gives zeros, and takes memory for what is written.
    zeros = torch.from_numpy(numpy.zeros(num_bytes, dtype=numpy.uint8))
    return zeros.view(value.dtype).view(shape)
