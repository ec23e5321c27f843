"""Computes the batches of an epoch of many samples, each when it is asked for.

To draw a permutation of 10^9 samples takes minutes and 8 GB, before the first batch and each time a
run goes on. Here the sample at any place of the epoch is computed from the place alone. A keyed
permutation of numbers tells which sample of a bucket comes at that place, and counts for each block
of samples tell where it lies in the data set. This takes little more memory than a byte a sample.

The order of an epoch depends on the seed and the epoch alone: on all ranks it is the same, and a
run that goes on with another numpy goes on in the same order.

Shapes: B samples in a batch of one rank, R ranks, N samples, K buckets.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002): the generalized
Feistel cipher over a x b numbers, and cycle walking, which keeps the result below n.
Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014):
the generator SplitMix64, which makes the keys, and its finalizer, which the cipher mixes with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"
Numbers: TypeAlias = "Any"
"""An int, for which numpy's calls would cost more than the work, or [n], uint64.

It is `Any` since numpy's stubs take a sum of the latter and an int for signed."""

_BLOCK = 128
_NUM_ROUNDS = 6
_TABLE_SIZE = 512
"""Up to so many numbers are shuffled as a table."""
_MAX_AHEAD = 16
"""The most batches computed together: for a single one, numpy's calls cost more than its work."""

_BLOCKS_AT_ONCE = 2**13


class BucketIndex:
    """Finds where in a data set the samples of each bucket lie.

    Args:
        bucket_of: [N], small integers: the bucket of each sample; at least a block of them.
        num_buckets: the number of buckets (K).
    """

    def __init__(self, bucket_of: npt.NDArray[np.signedinteger], num_buckets: int) -> None:
        self._bucket_of = bucket_of
        num_blocks = -(-len(bucket_of) // _BLOCK)
        kind = np.int32 if len(bucket_of) < 2**31 else np.int64
        before = np.zeros((num_buckets, num_blocks + 1), kind)
        for begin in range(0, num_blocks, _BLOCKS_AT_ONCE):
            part = bucket_of[begin * _BLOCK : (begin + _BLOCKS_AT_ONCE) * _BLOCK]
            is_whole = len(part) % _BLOCK == 0
            part = part if is_whole else np.pad(part, (0, -len(part) % _BLOCK), constant_values=-1)
            blocks = part.reshape(-1, _BLOCK)
            for bucket in range(num_buckets):
                here = (blocks == bucket).sum(axis=1, dtype=np.int16)
                before[bucket, begin + 1 : begin + 1 + len(here)] = here
        self._num_before = before.cumsum(axis=1, dtype=kind, out=before)
        """[K, blocks + 1], how many samples of each bucket come before each block."""

    @property
    def counts(self) -> IntArray:
        """[K], the number of samples of each bucket."""
        return self._num_before[:, -1].astype(np.int64)

    def counts_of_last(self, number: int) -> IntArray:
        """Returns [K], how many of the last samples of the data set are in each bucket."""
        last = self._bucket_of[len(self._bucket_of) - number :]
        return np.bincount(last, minlength=len(self._num_before))

    def find(self, bucket: int, numbers: IntArray) -> IntArray:
        """Returns [n], the indices in the data set of some samples of a bucket.

        Args:
            bucket: the bucket.
            numbers: [n], the number of each sample within the bucket, from 0.
        """
        num_before = self._num_before[bucket]
        # `searchsorted` would convert the whole row if the types differed.
        blocks = num_before.searchsorted(numbers.astype(num_before.dtype), "right") - 1
        is_in = self._block(blocks) == bucket
        # Where in all these blocks the samples of the bucket are, and the first one of each block.
        places = is_in.ravel().nonzero()[0]
        num_in = np.count_nonzero(is_in, axis=1)
        firsts = num_in.cumsum() - num_in
        found: IntArray = blocks * _BLOCK + places[firsts + numbers - num_before[blocks]] % _BLOCK
        return found

    def _block(self, blocks: IntArray) -> npt.NDArray[np.signedinteger]:
        """Returns [n, samples of a block], the buckets of the samples in some blocks.

        Behind the last sample it is -1.
        """
        num_whole = len(self._bucket_of) // _BLOCK
        whole = self._bucket_of[: num_whole * _BLOCK].reshape(num_whole, _BLOCK)
        found = whole[np.minimum(blocks, num_whole - 1)]
        if (is_last := blocks == num_whole).any():
            rest = self._bucket_of[num_whole * _BLOCK :]
            found[is_last] = np.pad(rest, (0, _BLOCK - len(rest)), constant_values=-1)
        return found


class Shuffled:
    """A permutation of the numbers below n, whose elements are computed one by one.

    Args:
        size: the number of elements (n).
        keys: numbers of 64 bits, of which it takes a few; other keys give another permutation.
    """

    def __init__(self, size: int, keys: Iterator[int]) -> None:
        self._size, self._keys = size, list(islice(keys, _NUM_ROUNDS))
        self._left = math.isqrt(max(size, 1) - 1) + 1
        self._right = -(-max(size, 1) // self._left)
        self._table: IntArray | None = None
        if size <= _TABLE_SIZE:
            # Of few numbers the cipher prefers some orders: one of five comes twice as often.
            self._table = _mixed(np.arange(size, dtype=np.uint64) ^ self._keys[0]).argsort()

    def __call__(self, numbers: IntArray) -> IntArray:
        """Returns the elements at some places.

        Args:
            numbers: [n], the places, each below the size.
        """
        if self._table is not None:
            return self._table[numbers]
        found: npt.NDArray[np.uint64] = self._encipher(numbers.astype(np.uint64))
        # The cipher permutes a rectangle a little larger than n. A result beyond n is enciphered
        # again until it is within; that concerns fewer than one in sqrt(n).
        while (is_out := found >= self._size).any():
            found[is_out] = self._encipher(found[is_out])
        return found.astype(np.int64)

    def one(self, number: int) -> int:
        """Returns the element at one place."""
        if self._table is not None:
            return int(self._table[number])
        found: int = self._encipher(number)
        while found >= self._size:
            found = self._encipher(found)
        return found

    def _encipher(self, numbers: Numbers) -> Numbers:
        left, right = divmod(numbers, self._right)
        for index, key in enumerate(self._keys):
            # The upper bits are the best mixed ones. There are 33, so that no sum overflows.
            if index % 2:
                right = (right + (_mixed(left ^ key) >> 31)) % self._right
            else:
                left = (left + (_mixed(right ^ key) >> 31)) % self._left
        return left * self._right + right


_64_BITS = 2**64 - 1


def _mixed(number: Numbers) -> Numbers:
    """Returns numbers of 64 bits that look random; two are never the same for other numbers."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    return ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _64_BITS


def random_keys(seed: int, epoch: int) -> Iterator[int]:
    """Yields numbers of 64 bits that look random, always the same for a seed and an epoch."""
    state = _finalized(_finalized(int(seed) & _64_BITS) ^ int(epoch))
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _64_BITS
        yield _finalized(state)


def _finalized(number: int) -> int:
    number = _mixed(number)
    return number ^ (number >> 31)


class LargeOrder:
    """Yields the batches of one epoch on one rank.

    All samples stand in a row: the largest bucket comes first, and within a bucket the order is
    random. Each step takes B * R of them, and in training the steps come in random order.

    Args:
        index: the index of the data set.
        per_rank: samples of a batch on each rank (B).
        rank: the number of this rank, and how many there are (R).
        num_left_out: how many samples do not come in this epoch: random ones in training, and the
            last ones of the data set otherwise.
        epoch: the seed of the run, and the number of the epoch; None for the order of the data set.
    """

    def __init__(
        self,
        index: BucketIndex,
        per_rank: int,
        rank: tuple[int, int],
        num_left_out: int,
        epoch: tuple[int, int] | None,
    ) -> None:
        rank_number, num_ranks = rank
        counts: list[int] = index.counts[::-1].tolist()  # the largest bucket first
        total = sum(counts)
        self._index, self._per_step = index, per_rank * num_ranks
        self._num_samples = total - num_left_out
        self._num_steps = -(-self._num_samples // self._per_step)
        # The first sample of a step, which all ranks know, and the samples of this rank.
        self._offsets = np.concatenate([[0], np.arange(per_rank) * num_ranks + rank_number])
        self._within: list[Shuffled] | None = None
        self._steps: Shuffled | None = None
        if epoch is not None:
            keys = random_keys(*epoch)
            self._within = [Shuffled(count, keys) for count in counts]
            counts = _left_in(counts, num_left_out, next(keys))
            # With a single bucket the steps are in random order anyway.
            self._steps = Shuffled(self._num_steps, keys) if len(counts) > 1 else None
        else:
            counts = (index.counts - index.counts_of_last(num_left_out))[::-1].tolist()
        self._begins = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return self._num_steps

    def batches(self, start: int) -> Iterator[tuple[list[int], int, int]]:
        """Yields the indices of this rank, their bucket, and one sample of it, from a step on."""
        # The first batch is computed alone, so that it comes at once; later ones in larger groups.
        num_ahead = 1
        while start < self._num_steps:
            steps = range(start, min(start + num_ahead, self._num_steps))
            start, num_ahead = start + num_ahead, min(2 * num_ahead, _MAX_AHEAD)
            shuffled = steps if self._steps is None else map(self._steps.one, steps)
            firsts = np.array([step * self._per_step for step in shuffled])
            places = firsts[:, None] + self._offsets
            is_real = places < self._num_samples
            samples, buckets = self._at(np.minimum(places, self._num_samples - 1))
            for row, real, bucket in zip(samples, is_real, buckets[:, 0].tolist(), strict=True):
                yield row[1:][real[1:]].tolist(), bucket, int(row[0])

    def _at(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the samples at some places of the row, and the bucket of each."""
        which = self._begins.searchsorted(places, "right") - 1
        buckets = len(self._begins) - 2 - which
        samples = np.empty_like(places)
        for number in set(which.ravel().tolist()):
            is_here = which == number
            numbers = places[is_here] - self._begins[number]
            if self._within is not None:
                numbers = self._within[number](numbers)
            samples[is_here] = self._index.find(len(self._begins) - 2 - number, numbers)
        return samples, buckets


def _left_in(counts: Sequence[int], num_left_out: int, drawn: int) -> list[int]:
    """Returns how many samples of each bucket come, if some of all are left out.

    A bucket loses as many as are its share, rounded up or down so that each sample is left out
    with the same probability: one number between the buckets' shares is drawn for all of them.
    """
    total, before, out_before = sum(counts), 0, 0
    left_in = []
    for count in counts:
        before += count
        out = (before * num_left_out + drawn % total) // total
        left_in.append(count - out + out_before)
        out_before = out
    return left_in
