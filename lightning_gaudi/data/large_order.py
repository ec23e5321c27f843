"""Computes the batches of an epoch of many samples, each when it is asked for.

To draw a permutation of 10^9 samples takes minutes and 8 GB, before the first batch and each time a
run goes on. Here the sample at any place of the epoch is computed from the place alone. A keyed
permutation of numbers tells which sample of a bucket comes at that place, and counts for each block
of samples tell where it lies in the data set. This takes little more memory than a byte a sample.

Shapes: B samples in a batch of one rank, R ranks, N samples, K buckets, S steps.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002): the generalized
Feistel cipher over a x b numbers, and cycle walking, which keeps the result below n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"

_BLOCK = 128
_NUM_ROUNDS = 4
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

    def find(self, buckets: IntArray, numbers: IntArray) -> IntArray:
        """Returns [n], the indices of samples in the data set.

        Args:
            buckets: [n], the bucket of each sample.
            numbers: [n], the number of each sample within its bucket, from 0.
        """
        blocks = np.empty_like(numbers)
        # `searchsorted` would convert the whole row if the types differed.
        wanted = numbers.astype(self._num_before.dtype)
        for bucket in set(buckets.tolist()):
            is_here = buckets == bucket
            blocks[is_here] = self._num_before[bucket].searchsorted(wanted[is_here], "right")
        blocks -= 1
        ahead = numbers - self._num_before[buckets, blocks]
        same = self._block(blocks) == buckets[:, None].astype(self._bucket_of.dtype)
        before = same.cumsum(axis=1, dtype=np.int16) <= ahead[:, None].astype(np.int16)
        found: IntArray = blocks * _BLOCK + before.sum(axis=1)
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
        keys: [rounds], of 64 bits; other keys give another permutation.
    """

    def __init__(self, size: int, keys: npt.NDArray[np.uint64]) -> None:
        self._size = size
        self._left = math.isqrt(max(size, 1) - 1) + 1
        self._right = -(-max(size, 1) // self._left)
        self._keys = list(keys)

    def __call__(self, numbers: IntArray) -> IntArray:
        """Returns the elements at some places.

        Args:
            numbers: [n], the places, each below the size.
        """
        found = self._encipher(numbers)
        # The cipher permutes a rectangle a little larger than n. A result beyond n is enciphered
        # again until it is within; that concerns fewer than one in sqrt(n).
        while (is_out := found >= self._size).any():
            found[is_out] = self._encipher(found[is_out])
        return found

    def _encipher(self, numbers: IntArray) -> IntArray:
        left, right = np.divmod(numbers, self._right)
        for index, key in enumerate(self._keys):
            if index % 2:
                right = (right + _mixed(left, key, self._right)) % self._right
            else:
                left = (left + _mixed(right, key, self._left)) % self._left
        found: IntArray = left * self._right + right
        return found


def _mixed(numbers: IntArray, key: np.uint64, below: int) -> IntArray:
    """Returns numbers below a limit that look random, always the same for a number and a key.

    Source: the finalizer of SplitMix64: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom
    Number Generators" (OOPSLA 2014).
    """
    found = numbers.astype(np.uint64) ^ key
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: IntArray = ((found >> np.uint64(31)) % np.uint64(below)).astype(np.int64)
    return mixed


class LargeOrder:
    """Yields the batches of one epoch on one rank.

    All samples stand in a row: the largest bucket comes first, and within a bucket the order is
    random. Each step takes B * R of them, and in training the steps come in random order.

    Args:
        index: the index of the data set.
        per_rank: samples of a batch on each rank (B).
        rank: the number of this rank, and how many there are (R).
        num_left_out: how many random samples do not come in this epoch.
        rng: the generator of this epoch; None for the order of the data set.
    """

    def __init__(
        self,
        index: BucketIndex,
        per_rank: int,
        rank: tuple[int, int],
        num_left_out: int,
        rng: np.random.Generator | None,
    ) -> None:
        self._index, self._per_rank, (self._rank, self._num_ranks) = index, per_rank, rank
        counts = index.counts[::-1].copy()  # the largest bucket first
        total = int(counts.sum())
        self._within: list[Shuffled] | None = None
        self._steps: Shuffled | None = None
        if rng is not None:
            shape = (len(counts) + 1, _NUM_ROUNDS)
            *keys, of_steps = rng.integers(2**64, size=shape, dtype=np.uint64)
            self._within = list(map(Shuffled, counts.tolist(), keys))
            out = rng.choice(total, num_left_out, replace=False, shuffle=False)
            which = np.searchsorted(counts.cumsum(), out, side="right")
            counts = counts - np.bincount(which, minlength=len(counts))
        self._begins = np.concatenate([[0], counts.cumsum()])
        self._per_step = per_rank * self._num_ranks
        self._num_samples = total - num_left_out
        self._num_steps = -(-self._num_samples // self._per_step)
        # With a single bucket the steps are in random order anyway.
        if rng is not None and len(counts) > 1:
            self._steps = Shuffled(self._num_steps, of_steps)

    def __len__(self) -> int:
        return self._num_steps

    def batches(self, start: int) -> Iterator[tuple[list[int], int, int]]:
        """Yields the indices of this rank, their bucket, and one sample of it, from a step on."""
        # The first batch is computed alone, so that it comes at once; later ones in larger groups.
        num_ahead = 1
        while start < self._num_steps:
            steps = np.arange(start, min(start + num_ahead, self._num_steps))
            start, num_ahead = start + num_ahead, min(2 * num_ahead, _MAX_AHEAD)
            firsts = (steps if self._steps is None else self._steps(steps)) * self._per_step
            places = np.arange(self._per_rank) * self._num_ranks + self._rank
            # The first sample of the step, which all ranks know, and the samples of this rank.
            places = np.concatenate([firsts[:, None], firsts[:, None] + places], axis=1)
            is_real = places < self._num_samples
            samples, buckets = self._at(np.minimum(places, self._num_samples - 1).ravel())
            samples, buckets = samples.reshape(places.shape), buckets.reshape(places.shape)
            for row, real, bucket in zip(samples, is_real, buckets[:, 0], strict=True):
                yield row[1:][real[1:]].tolist(), int(bucket), int(row[0])

    def _at(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the samples at some places of the row, and the bucket of each."""
        which = np.searchsorted(self._begins, places, side="right") - 1
        numbers = places - self._begins[which]
        if self._within is not None:
            for each in set(which.tolist()):
                is_here = which == each
                numbers[is_here] = self._within[each](numbers[is_here])
        buckets = len(self._begins) - 2 - which
        return self._index.find(buckets, numbers), buckets
