"""Packs several sequences into one row of fixed length; attention keeps them apart.

A device that compiles a graph for every shape wants one shape. Padding every sequence to the
longest gives one, but most of the work is padding then. Packing gives one shape with almost no
padding: docstring text cut to 512 tokens fills 25 % of padded rows and 99 % of packed ones.

`pack` says which sequences share a row, or `pack_together` where a sample has several, such as an
article and its summary. A `PackDataset` gives a row's samples, and `pack_batch` makes tensors of
them. `block_diagonal_mask` keeps them apart in attention.

Shapes: B rows, T tokens in a row, K samples that a row may hold.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_gaudi.data.padding import pad_batch

__all__ = [
    "PackDataset",
    "block_diagonal_mask",
    "fitting_capacity",
    "pack",
    "pack_batch",
    "pack_together",
]


def pack(
    lengths: Iterable[int],
    capacity: int,
    *,
    max_sequences: int | None = None,
    window: int = 1024,
) -> Iterator[list[int]]:
    """Groups sequences into packs of at most `capacity` tokens, in one pass and bounded memory.

    It looks for the best fit in a window of waiting sequences: a pack starts with the longest one
    and takes, again and again, the longest that still fits. `lengths` may be endless, since no more
    than `window` sequences wait at any time. The same lengths always give the same packs.

    Args:
        lengths: number of tokens of each sequence, in the order in which they are known by index.
        capacity: tokens that a pack holds (T).
        max_sequences: sequences that a pack may hold; None for any number.
        window: sequences to choose from; larger packs tighter.

    Yields:
        The indices of the sequences of one pack, longest first. Every index comes exactly once.

    Raises:
        ValueError: for a sequence that is empty or longer than `capacity`, and for settings
            below one.
    """
    limit = capacity if max_sequences is None else max_sequences
    for name, value in (("capacity", capacity), ("max_sequences", limit), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")
    waiting: list[tuple[int, int]] = []
    for index, length in enumerate(lengths):
        if not 0 < length <= capacity:
            raise ValueError(
                f"Sequence {index} has {length} tokens, but a pack holds 1 to {capacity}. "
                "Cut or drop it before packing, or raise the capacity."
            )
        insort(waiting, (length, -index))  # of equal lengths the oldest is taken first
        if len(waiting) == window:
            yield _take_pack(waiting, capacity, limit)
    while waiting:
        yield _take_pack(waiting, capacity, limit)


def _take_pack(waiting: list[tuple[int, int]], capacity: int, max_sequences: int) -> list[int]:
    """Removes one pack from `waiting`, which is sorted by length."""
    chosen: list[int] = []
    free = capacity
    while waiting and len(chosen) < max_sequences:
        # (free, 1) sorts behind every waiting sequence of length `free`.
        place = bisect_right(waiting, (free, 1)) - 1
        if place < 0:
            break
        length, negative_index = waiting.pop(place)
        chosen.append(-negative_index)
        free -= length
    return chosen


def pack_together(
    lengths: Iterable[Sequence[int]],
    capacities: Sequence[int],
    *,
    max_samples: int | None = None,
    window: int = 2048,
) -> Iterator[list[int]]:
    """Groups samples of several sequences each into packs, in one pass and bounded memory.

    It works as `pack` does, for samples that need room in several rows at once, such as those of an
    encoder and of a decoder. A pack takes, again and again, the sample that leaves least room in
    the emptiest of its rows, so that all rows fill up alike.

    Args:
        lengths: of each sample, the number of tokens of each of its sequences.
        capacities: tokens that a pack holds of each.
        max_samples: samples that a pack may hold (K); None for any number.
        window: samples to choose from; a larger window packs tighter.

    Yields:
        The indices of the samples of one pack. Every index comes exactly once.

    Raises:
        ValueError: for a sequence that is empty or longer than its capacity, for samples of
            another number of sequences, and for settings below one.
    """
    limit = window if max_samples is None else max_samples
    smallest = min(capacities, default=0)
    for name, value in (("capacities", smallest), ("max_samples", limit), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")
    rows = enumerate(lengths)
    numbers, needs = np.zeros(0, np.int64), np.zeros((0, len(capacities)))
    while True:
        new = list(islice(rows, window - len(numbers)))
        for index, each in new:
            _check_sample(index, each, capacities)
        numbers = np.concatenate([numbers, np.array([index for index, _ in new], np.int64)])
        shares = np.array([each for _, each in new], float).reshape(-1, len(capacities))
        needs = np.concatenate([needs, shares / np.asarray(capacities, float)])
        if not len(numbers):
            return
        chosen = _fill_rows(needs, limit)
        yield numbers[chosen].tolist()
        numbers, needs = np.delete(numbers, chosen), np.delete(needs, chosen, axis=0)


def _check_sample(index: int, lengths: Sequence[int], capacities: Sequence[int]) -> None:
    is_whole = len(lengths) == len(capacities)
    if not is_whole or not all(0 < n <= m for n, m in zip(lengths, capacities, strict=True)):
        raise ValueError(
            f"Sample {index} has sequences of {list(lengths)} tokens, but a pack holds 1 to "
            f"{list(capacities)}. Cut or drop it before packing, or raise the capacity."
        )


_EXACT = 1e-9
"""A tolerance for sums of shares: more than rounding loses, and less than the share of a token."""


def _fill_rows(needs: np.ndarray, max_samples: int) -> list[int]:
    """Returns which of the waiting samples share a pack.

    Args:
        needs: [waiting, sequences], shares of a pack's capacity, above 0 to 1; the oldest first.
        max_samples: a pack holds no more.
    """
    chosen: list[int] = []
    room = np.ones(needs.shape[1])
    waiting = np.arange(len(needs))
    while len(chosen) < max_samples:
        waiting = waiting[(needs[waiting] <= room + _EXACT).all(1)]
        if not len(waiting):
            break
        best = waiting[(room - needs[waiting]).max(1).argmin()]
        chosen.append(int(best))
        room = room - needs[best]
        waiting = waiting[waiting != best]
    return chosen


def fitting_capacity(
    lengths: np.ndarray, capacity: int, *, multiple_of: int = 8, max_samples: int | None = None
) -> int:
    """Returns how many tokens of a second sequence a pack should hold beside those of a first.

    It tries several numbers, and returns the one with the least padding in both rows together.

    Args:
        lengths: [number of samples, 2], as of articles and their summaries.
        capacity: tokens that a pack holds of the first.
        multiple_of: the result is a multiple of this.
        max_samples: samples that a pack may hold; None for any number.

    Raises:
        ValueError: for no samples, and as `pack_together` does.
    """
    if not len(lengths):
        raise ValueError("There are no samples to choose a capacity for. Give at least one.")
    # A part is enough; it is taken from all along the data, which may be sorted.
    tried = lengths[np.unique(np.linspace(0, len(lengths) - 1, _NUM_TRIED).astype(np.int64))]
    first, second = tried.sum(0)
    least = int(lengths[:, 1].max())
    proportion = round(capacity * int(second) / int(first))
    start = -(-max(least, proportion) // multiple_of) * multiple_of

    def num_places(other: int) -> int:
        packs = pack_together(tried.tolist(), (capacity, other), max_samples=max_samples)
        return sum(1 for _ in packs) * (capacity + other)

    best, fewest = start, num_places(start)
    for other in range(start + multiple_of, 2 * start + 1, multiple_of):
        if (found := num_places(other)) < fewest:
            best, fewest = other, found
        # The padding goes up and down by a few packs, so one worse number is no reason to stop.
        elif other >= best + 3 * multiple_of:
            break
    return int(best)


_NUM_TRIED = 2048


class PackDataset(Dataset[list[Any]]):
    """Gives the samples of a data set in packs: item `n` is the list of the samples of pack `n`.

    A loader asks it for `(epoch, index)` as it would ask the data set (`with_epoch`).

    Args:
        dataset: samples by index.
        packs: the indices of the samples of each pack, as from `pack`.
    """

    def __init__(self, dataset: Any, packs: Iterable[Sequence[int]]) -> None:
        self.dataset = dataset
        found = list(packs)
        self._starts = np.cumsum([0, *map(len, found)])
        self._indices = np.fromiter(chain.from_iterable(found), np.int64, self._starts[-1])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, key: Any) -> list[Any]:
        epoch, number = key if isinstance(key, tuple) else (None, key)
        indices = self._indices[self._starts[number] : self._starts[number + 1]].tolist()
        return [self.dataset[each if epoch is None else (epoch, each)] for each in indices]

    @property
    def samples_per_pack(self) -> float:
        """The average number of samples in a pack."""
        return len(self._indices) / max(len(self), 1)


def pack_batch(
    packs: Sequence[Sequence[Mapping[str, Any]]],
    length: int,
    *,
    pad_values: Mapping[str, float] | None = None,
    lengths: Mapping[str, int] | None = None,
    max_samples: int | None = None,
) -> dict[str, Any]:
    """Makes one row of each pack: the sequences of its samples in turn, padded at the end.

    Use it as `collate_fn` of a `BucketDataLoader` of a `PackDataset`, with `functools.partial`
    where settings are needed.

    Args:
        packs: B packs of samples, mappings with the same names. A list, array or tensor of one
            dimension is a sequence; numbers come by the sample.
        length: tokens of a row (T).
        pad_values: by name, what to pad with, such as {"labels": -100}. Default: 0.
        lengths: by name, another length than T, such as {"labels": 128} for a decoder.
        max_samples: samples that a row may hold (K); only where samples have numbers.

    Returns:
        By name, tensors [B, T] of sequences and [B, K] of numbers. The sequences of T tokens also
        have `sequence_ids` [B, T], int64, 1 for the first sample of a row, 2 for the second, 0 for
        padding; `position_ids` [B, T], from 0 in each sample; and with `max_samples`
        `first_positions` [B, K], where each sample begins. For a name with its own length these
        are `labels_sequence_ids` and `labels_position_ids`.

    Raises:
        ValueError: for a pack that is longer than its row or has more samples, for numbers without
            `max_samples`, and for sequences of one sample and row that differ in length.
    """
    own = dict(lengths or {})
    names = [name for name, value in packs[0][0].items() if _is_sequence(value)]
    numbers = [name for name in packs[0][0] if name not in names]
    if numbers and max_samples is None:
        raise ValueError(
            f"{numbers[0]} is a number of each sample, and it is not known how many samples a row "
            "may have. Pass max_samples."
        )
    limits = {name: own[name] for name in names if name in own}
    rows: list[dict[str, Any]] = []
    for samples in packs:
        if max_samples is not None and len(samples) > max_samples:
            raise ValueError(
                f"A pack has {len(samples)} samples, but a row holds max_samples={max_samples}. "
                "Pass the same number to `pack`."
            )
        row = {name: np.concatenate([np.asarray(each[name]) for each in samples]) for name in names}
        for prefix, alike in _layouts(names, own).items():
            sizes = _sizes(samples, alike)
            row[f"{prefix}sequence_ids"] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
            row[f"{prefix}position_ids"] = np.concatenate([np.arange(size) for size in sizes])
            if prefix:
                places = (f"{prefix}sequence_ids", f"{prefix}position_ids")
                limits |= dict.fromkeys(places, own[alike[0]])
            elif max_samples is not None:
                row["first_positions"] = np.cumsum([0, *sizes[:-1]])
                limits["first_positions"] = max_samples
        for name in numbers:
            row[name] = np.array([each[name] for each in samples])
            limits[name] = max_samples or 0
        rows.append(row)
    batch = pad_batch(rows, length, pad_values=pad_values, lengths=limits)
    batch.pop("attention_mask", None)  # it would let samples of a row see each other
    return batch


def _is_sequence(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and np.ndim(value) == 1


def _layouts(names: Sequence[str], own: Mapping[str, int]) -> dict[str, list[str]]:
    """Groups the sequences that lie alike in a row, by the prefix of the names of their places."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(f"{name}_" if name in own else "", []).append(name)
    return found


def _sizes(samples: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[int]:
    """Returns how many tokens each sample has in a row, the same in all of its sequences."""
    sizes = [len(sample[names[0]]) for sample in samples]
    for name in names[1:]:
        if (others := [len(sample[name]) for sample in samples]) != sizes:
            raise ValueError(
                f"{names[0]} and {name} of a sample share a row, but have {sizes} and {others} "
                "tokens. Give one of them a length of its own (lengths)."
            )
    return sizes


def block_diagonal_mask(
    sequence_ids: Tensor, dtype: torch.dtype = torch.float32, key_ids: Tensor | None = None
) -> Tensor:
    """Returns the additive attention mask under which each packed sequence attends only to itself.

    It is built from elementwise operations on the device of `sequence_ids`, so it costs no host
    synchronization, and its shape depends on nothing but T. Padding (id 0) attends to padding, so
    no row is masked entirely, and no softmax divides by zero. (With other keys a row may be, if
    these have no padding. The mask is finite, so that row is the mean of all of them.)

    Args:
        sequence_ids: [B, T], integer; 0 for padding, else the number of the sequence in its row.
        dtype: floating dtype of the result: that of the hidden states it will be added to.
        key_ids: [B, S], of what is attended to: a decoder's tokens attend to the encoder's. None
            for attention of the sequences to themselves.

    Returns:
        [B, 1, T, S or T] of `dtype`: 0 where attention is allowed, a very negative number
        elsewhere.
    """
    keys = sequence_ids if key_ids is None else key_ids
    allowed = sequence_ids[:, None, :, None] == keys[:, None, None, :]
    # The lowest bfloat16 is finite in float32 as well; float32's own would become -inf in autocast.
    lowest = max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)
    return allowed.logical_not().to(dtype).mul_(lowest)
