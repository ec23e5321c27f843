"""Sides of one comparison, timed in turns so that a slow moment of the machine meets all."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.harness.rows import Row, ratio

Side = TypeVar("Side")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Effort:
    """How often to measure."""

    is_quick: bool = False
    """Three rounds: to see that it works, not to learn figures."""

    def rounds(self, full: int) -> int:
        """Returns how many rounds to measure in place of so many."""
        return min(full, 3) if self.is_quick else full


def in_turns(
    sides: Sequence[Side], num_rounds: int, measure: Callable[[Side], Found]
) -> dict[Side, list[Found]]:
    """What each side gave in each round; the order alternates, so that none is always first."""
    found: dict[Side, list[Found]] = {side: [] for side in sides}
    for index in range(num_rounds):
        for side in sides if index % 2 else reversed(sides):
            found[side].append(measure(side))
    return found


def elapsed(do: Callable[[], Any], calls: int = 1) -> float:
    """Seconds that a call takes, of so many."""
    start = perf_counter()
    for _ in range(calls):
        do()
    return (perf_counter() - start) / calls


@dataclass(frozen=True)
class Comparison:
    """The same work on two sides, in one process."""

    name: str
    make: Callable[[str], Callable[[], object]]
    """Given a side's name, sets the work up and returns what one call does."""
    limit: float
    """What the ratio should not exceed."""
    calls: int
    """Calls in one timing: enough for some milliseconds."""
    rounds: int
    """Timings of each side."""

    def measure(self, side: str, reference: str, effort: Effort) -> Row:
        """Time both sides."""
        work = {name: self.make(name) for name in (side, reference)}
        for call in work.values():
            for _ in range(max(3, self.calls // 10)):
                call()
        gc.collect()
        gc.disable()
        try:
            times = in_turns(
                (side, reference),
                effort.rounds(self.rounds),
                lambda name: elapsed(work[name], self.calls),
            )
        finally:
            gc.enable()
        return ratio(self.name, times[side], times[reference], limit=self.limit)
