"""Makes batches of any size from the samples that a loader has.

On a dry card only shapes count, and the values of small tensors and of integers: labels, lengths,
masks. So the rows of the loader come again and again, and large rows of other types are left as
zeros, which take no memory. Some batches do not have a row for each sample in all of their tensors,
such as the nodes of graphs or the boxes of pictures. These are put together anew by the loader's
own `collate_fn`.
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
    """Returns the number of a batch's samples; 0 if the batch does not tell.

    It is the first dim of most tensors or, without tensors, the length of most lists. If the loader
    says how many samples it gives, and some tensor or list has so many, it is that number.
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
    """Yields the lengths of the innermost lists, since torch collates texts to lists of columns."""
    parts = _parts(value)
    if type(value) in (list, tuple) and not any(isinstance(each, _CONTAINERS) for each in parts):
        yield len(parts)
    for each in parts:
        if isinstance(each, _CONTAINERS):
            yield from _lengths(each)


def _parts(value: Any) -> Sequence[Any]:
    """Returns the parts of a container of tensors; transformers has mappings of its own."""
    if isinstance(value, Mapping):
        return [*value.values()]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return value if isinstance(value, (list, tuple)) else ()


_CONTAINERS = (Mapping, list, tuple)

LOOKED_AT = 64
"""The number of first batches of a loader that are looked at. The one with most elements is used,
since the first is seldom the largest where batches come in buckets of lengths."""
_LOOK_S = 5.0
"""The most seconds to look at batches, since a loader may be slow."""
NUM_STEPS = 3
"""The number of optimizer steps of a rehearsal, or of batches where nothing is trained."""
_EVALUATE_S = 2.0
"""The most seconds that an evaluation goes on after the steps, since it may write long texts."""


_MAX_OTHERS = 7
"""The most other shapes that come beside the largest; with more, they are not buckets."""


class _Looked(NamedTuple):
    """Holds what was found in a loader."""

    largest: Any
    """The largest batch; None if the loader has no batch."""
    fullest: Any
    """The batch of that size with the least padding, if it is another one."""
    before: list[Any]
    """A batch of each other shape that comes before the largest one, in the loader's order."""
    behind: list[Any]
    """A batch of each other shape that comes after the last largest one."""


class Repeated:
    """A loader whose largest batch comes again and again, as it is or in another size.

    Args:
        loader: The program's loader, whose attributes this one has, too.
        batch_size: The size of all batches; None for that of the largest one.
        limit: The Trainer's limit of an evaluation's batches, a number or a share. So many come,
            since results that are gathered take memory; None gives as many as are asked for.
        has_others: Whether a batch of each other shape comes, too, in the loader's order. Code
            without gradients may keep something for each shape, as `TextGenerator` keeps caches
            and graphs.
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
        if name == "_loader":  # asked by `copy` before it has set any attribute
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        limit = self._limit
        if limit is None:
            return 2**20
        # The Trainer multiplies this number by its limit if that is a share.
        wanted = self._num_wanted(limit)
        return math.ceil(wanted / limit) if isinstance(limit, float) else wanted

    def _num_wanted(self, limit: float) -> int:
        """Returns the number of batches that an evaluation takes."""
        try:
            num_batches: float = len(self._loader)
        except (TypeError, NotImplementedError):  # raised if the loader has no end
            num_batches = LOOKED_AT
        if self._batch_size is not None:
            num_batches *= self._size_of(self._look().largest) / self._batch_size
        num_batches = num_batches * limit if isinstance(limit, float) else min(num_batches, limit)
        return max(self.num_others + NUM_STEPS, min(math.ceil(num_batches), LOOKED_AT))

    @property
    def num_before(self) -> int:
        """The number of batches that come before the largest one."""
        return len(self._look().before)

    @property
    def num_others(self) -> int:
        """The number of batches of other shapes, before the largest and after it."""
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
            # Made anew each time, since hooks change batches in place. The second step has all that
            # the others have, and is not the one that is measured.
            yield self._sized(batches[number % NUM_STEPS == 1])
        yield from map(self._sized, found.behind)

    def _look(self) -> _Looked:
        """Looks at the first batches, and keeps one of each shape if others are wanted, too."""
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
                    # Drops the last one of the smallest, so that the first of the largest stays.
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
    """Returns the batch size that a loader declares; None if it declares none."""
    found = getattr(loader, "batch_size", None)
    return found if isinstance(found, int) else None


def _has_rows(batch: Any, size: int) -> bool:
    """Returns whether each tensor has a row a sample, and each list without tensors an item."""
    dims = _first_dims(batch)
    return all(each == size for each in (dims or _lengths(batch)))


def _collating(loader: Any) -> Callable[[int], Any] | None:
    """Returns a function that makes a batch of any size; None if the loader gives no samples.

    The samples are those of the largest of the first batches.
    """
    loader = getattr(loader, "loader", loader)
    if not isinstance(loader, DataLoader) or loader.collate_fn is None:
        return None
    if loader.batch_size is None and loader.batch_sampler is None:
        return None  # the data set gives whole batches
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
    """Returns the shapes of a batch's tensors for so many samples; None keeps its own number."""
    return tuple(
        (size or before, *each.shape[1:]) if each.dim() and each.shape[0] == before else each.shape
        for each in _tensors(batch)
    )


def _num_elements(batch: Any) -> int:
    return sum(each.numel() for each in _tensors(batch))


def _num_full(batch: Any) -> int:
    """Returns how many integers and booleans are not zero, as padding is in ids and masks."""
    whole = (each for each in _tensors(batch) if not each.is_floating_point())
    return sum(int(each.count_nonzero()) for each in whole)


_MOST_BYTES = 2**24
"""The largest tensor of integers or booleans of which a dry card has the values."""
_MOST_FLOAT_BYTES = 2**20
"""The same for all other types; see the simulator's `runtime/dry.h`."""


def _resized(batch: Any, before: int, size: int) -> Any:
    """Returns a batch of another size, in which rows of tensors and items of lists are repeated."""

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
        if isinstance(value, (list, tuple)):  # a subclass, mostly a named tuple
            return type(value)(*resized)
        names = [field.name for field in fields(value)]
        return replace(value, **dict(zip(names, resized, strict=True)))

    return resize(batch)


def _rows(value: Tensor, before: int, size: int) -> Tensor:
    """Returns rows of a tensor in memory of their own, since hooks change batches in place."""
    if size == before:
        return value.clone()
    shape = (size, *value.shape[1:])
    is_of_integers = value.dtype in (torch.int64, torch.int32, torch.bool)
    most = _MOST_BYTES if is_of_integers else _MOST_FLOAT_BYTES
    num_bytes = math.prod(shape) * value.element_size()
    if num_bytes <= most or not value.is_contiguous() or value.device.type != "cpu":
        return value[torch.arange(size, device=value.device) % before]
    # The system gives zeros, and takes memory only for what is written.
    zeros = torch.from_numpy(numpy.zeros(num_bytes, dtype=numpy.uint8))
    return zeros.view(value.dtype).view(shape)
