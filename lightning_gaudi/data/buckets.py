"""Chooses bucket boundaries, a few lengths to pad to, so that as little as possible is wasted.

A device that compiles a graph for every shape wants few shapes. With a single shape every sample is
padded to the longest one. The boundaries that are computed here waste least for a given number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["optimal_buckets"]

Lengths: TypeAlias = "Sequence[int] | npt.NDArray[Any] | Tensor"
IntArray: TypeAlias = "npt.NDArray[np.int64]"


def optimal_buckets(
    lengths: Lengths,
    num_buckets: int,
    *,
    multiple_of: int = 8,
    max_length: int | None = None,
) -> list[int]:
    """Returns the boundaries of at most `num_buckets` buckets that pad these lengths the least.

    A sample is padded to the smallest boundary that holds it. Of all choices of boundaries among
    the multiples of `multiple_of`, dynamic programming finds one with the fewest tokens after
    padding; where fewer buckets do as well, there are fewer.

    Args:
        lengths: [number of samples], the number of tokens of each.
        num_buckets: the most boundaries there may be; as many graphs are compiled.
        multiple_of: each boundary is a multiple of this.
        max_length: the last boundary, whatever `lengths` hold, such as the length to which a
            tokenizer cuts; it need not be a multiple. None for the longest sample, rounded up.

    Returns:
        The boundaries, ascending: the longest length that each bucket takes.

    Raises:
        ValueError: without lengths, for lengths or settings below one, and for a sample that is
            longer than `max_length`.
    """
    counted = checked_lengths(lengths)
    check_positive(num_buckets=num_buckets, multiple_of=multiple_of)
    longest = int(counted.max())
    last = -(-longest // multiple_of) * multiple_of if max_length is None else max_length
    if longest > last:
        raise ValueError(too_long(longest, last))
    # Only lengths that occur, rounded up, can be the best boundaries; the last one is given.
    rounded = np.minimum(-(-counted // multiple_of) * multiple_of, last)
    candidates, counts = np.unique(np.append(rounded, last), return_counts=True)
    counts[-1] -= 1  # the one appended
    return _fewest_padded_tokens(candidates.astype(np.int64), counts.cumsum(), num_buckets)


def _fewest_padded_tokens(candidates: IntArray, num_up_to: IntArray, num_buckets: int) -> list[int]:
    """Chooses at most `num_buckets` of the n candidates, the last among them.

    Args:
        candidates: [n], ascending.
        num_up_to: [n], the number of samples no longer than each candidate.
        num_buckets: the most to choose.
    """
    num_candidates = len(candidates)
    depth = min(num_buckets, num_candidates)
    # fewest[k, j] is the tokens of all samples up to candidate j in k + 1 buckets, the last of
    # which ends at j.
    fewest = np.full((depth, num_candidates), np.iinfo(np.int64).max // 2)
    previous = np.zeros((depth, num_candidates), np.int64)
    fewest[0] = num_up_to * candidates
    for j in range(1, num_candidates):
        tokens = fewest[:-1, :j] + (num_up_to[j] - num_up_to[:j]) * candidates[j]
        previous[1:, j] = tokens.argmin(axis=1)
        fewest[1:, j] = tokens.min(axis=1)
    k, j = int(fewest[:, -1].argmin()), num_candidates - 1  # the first, so the fewest buckets
    chosen = [j]
    for level in range(k, 0, -1):
        j = int(previous[level, j])
        chosen.append(j)
    return [int(candidates[j]) for j in reversed(chosen)]


def bucket_of_each(lengths: Lengths, boundaries: Sequence[int]) -> npt.NDArray[np.signedinteger]:
    """Returns the number of the smallest bucket that holds each sample.

    Args:
        lengths: [number of samples], the number of tokens of each.
        boundaries: ascending: the longest length that each bucket takes.

    Returns:
        [number of samples], counted from 0; one byte each for up to 128 buckets.

    Raises:
        ValueError: for invalid lengths or boundaries, and a sample longer than the last boundary.
    """
    limits = np.asarray(boundaries)
    if limits.ndim != 1 or not len(limits) or (limits < 1).any() or (np.diff(limits) < 1).any():
        raise ValueError(
            f"boundaries must ascend and be at least 1, but are {list(boundaries)}. "
            "Sort them and drop repeated ones, or compute them with optimal_buckets."
        )
    counted = _checked(lengths)
    if (longest := int(counted.max())) > limits[-1]:
        raise ValueError(too_long(longest, int(limits[-1])))
    kind = np.int8 if len(limits) <= np.iinfo(np.int8).max + 1 else np.int16
    # A table is faster than a search for each sample. It is read part by part, since an array that
    # indexes is converted to eight bytes a sample.
    bucket_of = np.searchsorted(limits, np.arange(longest + 1)).astype(kind)
    found = np.empty(len(counted), kind)
    for begin in range(0, len(counted), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        found[part] = bucket_of[counted[part]]
    return found


_AT_ONCE = 2**18


def checked_lengths(lengths: Lengths) -> IntArray:
    """Returns the lengths as an array that is not empty and holds whole numbers of at least one."""
    return _checked(lengths).astype(np.int64)


def _checked(lengths: Lengths) -> npt.NDArray[np.integer]:
    counted = np.asarray(lengths)
    if counted.ndim != 1 or not len(counted):
        raise ValueError(
            f"lengths must be one number for each sample, but their shape is {counted.shape}. "
            "An empty data set has no buckets: check what was loaded."
        )
    if counted.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers, but are {counted.dtype}.")
    if (shortest := int(counted.min())) < 1:
        raise ValueError(
            f"lengths must be at least 1, but sample {int(counted.argmin())} has {shortest} "
            "token(s). Drop empty samples before bucketing."
        )
    return counted


def check_positive(**settings: int) -> None:
    """Refuses settings below one, by name."""
    for name, value in settings.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")


def too_long(num_tokens: int, limit: int) -> str:
    """Returns the message for a sample that no bucket holds."""
    return (
        f"A sample has {num_tokens} tokens but the largest bucket holds {limit}. "
        "Truncate in the tokenizer or add a larger boundary."
    )
