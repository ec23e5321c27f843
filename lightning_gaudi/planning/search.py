"""The largest batch that keeps within a budget, found with few measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

LARGEST = 2**16
"""No larger batch is looked for."""

_CLOSE = 64
"""A batch that is larger by less than this part is not looked for: each takes seconds."""

_FIRST_LEAP = 16


class Need(NamedTuple):
    """What a batch size takes, in bytes."""

    whole: int
    """All that a card must have."""
    growing: int
    """The part of it that depends on the batch: what forward and backward need at once."""


def largest_within(measure: Callable[[int], Need], budget: int, known: dict[int, Need]) -> int:
    """About the largest batch size that keeps within a budget; 0 if not even one sample does.

    The one that is found keeps within it; one that is 2 % larger may, too.

    What forward and backward need grows about in a line: each guess is where the line through the
    two nearest measurements crosses the budget.

    Args:
        measure: Gives the need of a batch size.
        budget: In bytes.
        known: Needs by batch size; gets those that are measured.
    """

    def fits(size: int) -> bool:
        if size not in known:
            known[size] = measure(size)
        return known[size].whole <= budget

    if not fits(1):
        return 0
    low = max(size for size in known if fits(size))
    high = min((size for size in known if not fits(size)), default=LARGEST + 1)
    while high - low > max(1, low / _CLOSE):
        guess = _guess(known, low, high, budget)
        if guess - low < low / _CLOSE:
            if high not in known and guess < LARGEST:
                break  # the line from below ends here, and the true one is no flatter
            guess = (low + high) // 2 if high in known else guess
        low, high = (guess, high) if fits(guess) else (low, guess)
    return low


def _guess(known: dict[int, Need], low: int, high: int, budget: int) -> int:
    """Where to look between a size that fits and one that does not."""
    other = high if high in known else max((size for size in known if size < low), default=0)
    if not other:
        return min(_FIRST_LEAP * low, high - 1)
    slope = (known[other].growing - known[low].growing) / (other - low)
    if slope <= 0:
        return (low + high) // 2
    crossing = low + int((budget - known[low].growing) / slope)
    return max(low + 1, min(crossing, high - 1))
