"""Finds the largest batch that keeps within a budget, with few measurements.

A search yields the sizes that it wants to be measured, so that the searches for several budgets can
go on at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LARGEST = 2**14
"""The largest batch that is looked for; each measurement takes seconds, and nobody needs more."""

_CLOSE = 64
"""A batch that is larger by less than this part is not looked for, since each takes seconds."""

_NEAR = 4
"""Below a size that cannot be measured, a size must be larger by this factor to be looked for.

Each of these takes as long as the longest measurement that is waited for."""

_FIRST_LEAP = 16

_ENOUGH_POOR = 2
"""The guesses in a row that may leave more than half of the range between the nearest sizes.

After these, memory does not grow in a line, or more of it grows than is reported."""


class Need(NamedTuple):
    """The bytes that a batch size takes."""

    whole: int
    """The memory that a card must have."""
    growing: int
    """The part that depends on the batch, which forward and backward need at once."""


class Largest(NamedTuple):
    """Holds what a search has found."""

    sizes: list[int]
    """The largest size for each budget; 0 if not even one sample keeps within it."""
    is_complete: bool
    """Whether nothing much larger keeps within the budgets; False if the search was ended early."""


def largest_within(
    measure: Callable[[Collection[int]], Mapping[int, Need | None]],
    budgets: Sequence[int],
    known: dict[int, Need],
    is_over: Callable[[], bool] = lambda: False,
    *,
    held: int | None = None,
) -> Largest:
    """Returns about the largest batch size that keeps within each budget.

    The size that is found keeps within it; one that is 2 % larger may do so, too.

    Each tensor grows in a line with the batch. So the memory that forward and backward need at
    once, which is the maximum of several lines, is convex. Each guess is where the line through the
    two nearest measurements crosses the budget. If that is certain enough, the guess is not
    measured.

    Args:
        measure: Returns the needs of batch sizes; None for a size that cannot be measured, such as
            one sample if the model normalizes over the batch. Sizes beyond it are not tried.
        budgets: The budgets in bytes.
        known: The needs by batch size, to which measurements are added.
        is_over: Returns whether to end the search with what is known; asked between measurements.
        held: The bytes in use whatever the batch; None if they are not known.
    """
    found = [0] * len(budgets)
    limits = _Limits()
    searches = {index: _search(budget, known, limits, held) for index, budget in enumerate(budgets)}
    while searches:
        if is_over():
            for index in searches:
                fitting = (size for size, need in known.items() if need.whole <= budgets[index])
                found[index] = max(fitting, default=0)
            return Largest(found, is_complete=False)
        wanted = set[int]()
        for index, search in [*searches.items()]:
            try:
                wanted.add(next(search))
            except StopIteration as end:
                found[index] = end.value
                del searches[index]
        if not wanted:
            break
        # The outermost two often answer the other searches, too.
        for size, need in measure(sorted({min(wanted), max(wanted)})).items():
            if need is not None:
                known[size] = need
            else:
                limits.note(size, is_above=size > max(known))
    is_cut_off = limits.above <= LARGEST and max(known) in found
    return Largest(found, is_complete=not is_cut_off and not (limits.below and 0 in found))


@dataclass
class _Limits:
    """The sizes that cannot be measured, nor any beyond them."""

    below: int = 0
    above: int = LARGEST + 1

    def note(self, size: int, *, is_above: bool) -> None:
        """Notes a size above all measured ones, or below them."""
        if is_above:
            self.above = min(size, self.above)
        else:
            self.below = max(size, self.below)


def _search(
    budget: int, known: Mapping[int, Need], limits: _Limits, held: int | None
) -> Generator[int, None, int]:
    """Yields sizes to be measured; when it goes on, the need is known or the size is a limit."""

    def fits(size: int) -> bool:
        return known[size].whole <= budget

    width, num_poor = math.inf, 0
    while True:
        low = max((size for size in known if fits(size)), default=limits.below)
        high = min((size for size in known if not fits(size)), default=limits.above)
        if low not in known:  # not even one sample of a large model may fit
            if low + 1 >= high:
                return 0
            yield min(2 * low + 1, high - 1)
            continue
        if high - low <= max(1, low / _CLOSE):
            return low
        if high == limits.above <= LARGEST:  # no line tells at which size it begins to fail
            if high <= _NEAR * low:
                return low
            yield math.isqrt(low * high)  # takes the root of the ratio of both
            continue
        below = max((size for size in known if size < low), default=0)
        most = _crossing(known, below, low, budget)
        if most is not None and low < LARGEST and most - low < low / _CLOSE:
            return low  # the line from below ends here, and the true curve is no flatter
        if high in known and (certain := _certain(known, low, high, budget)) is not None:
            return certain
        guess = most if high not in known else _crossing(known, low, high, budget)
        if guess is None:
            guess = _leap(known, low, budget, held) if high not in known else (low + high) // 2
        elif high in known:
            if high - low < width:  # otherwise the last guess was not measured
                num_poor = num_poor + 1 if 2 * (high - low) > width else 0
            if guess - low < low / _CLOSE or num_poor == _ENOUGH_POOR:
                guess, num_poor = (low + high) // 2, 0
            width = high - low
        yield max(low + 1, min(guess, high - 1))


def _leap(known: Mapping[int, Need], low: int, budget: int, held: int | None) -> int:
    """Returns the next size to measure if only one size is known.

    A batch without samples needs the memory that is held, or more. So the line through that point
    is too steep rather than too flat, and a size on it fits. Two sizes that are near each other
    would tell little of others.
    """
    most = None if held is None else _line(0, held, low, known[low].growing, budget)
    return max(most or 0, _FIRST_LEAP * low)


def _certain(known: Mapping[int, Need], low: int, high: int, budget: int) -> int | None:
    """Returns a size between two measured ones that fits and is close to the largest that does.

    A convex curve lies below the line through both, so the size where that line crosses the budget
    fits. It lies above the lines through the sizes beyond, so nothing fits beyond where these cross
    it. It returns None if the two are not close, or if something else fills the card.
    """
    safe = _crossing(known, low, high, budget)
    if safe is None or known[high].whole > known[high].growing:
        return None
    beyond = [(each, low) for each in known if each < low]
    beyond += [(each, high) for each in known if each > high]
    crossings = [_crossing(known, min(pair), max(pair), budget) for pair in beyond]
    most = min((each for each in crossings if each is not None), default=None)
    if most is None or not -1 <= most - safe <= max(1, safe / _CLOSE):
        return None
    return min(max(low, safe), high - 1)


def _crossing(known: Mapping[int, Need], low: int, high: int, budget: int) -> int | None:
    """Returns the size at which the line through two sizes meets a budget; None if it does not."""
    return _line(low, known[low].growing, high, known[high].growing, budget) if low else None


def _line(low: int, at_low: int, high: int, at_high: int, budget: int) -> int | None:
    if at_high <= at_low:
        return None
    return low + int((budget - at_low) * (high - low) / (at_high - at_low))
