"""Two sides of one comparison, timed in turns so that a slow moment of the machine meets both."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Result:
    """Medians of one comparison."""

    name: str
    seconds: float
    """Median time of one call on the side under test."""
    reference_seconds: float
    """Median time of one call on the reference side."""
    ratio: float
    """Median of the rounds' ratios."""
    limit: float
    """What `ratio` should not exceed."""

    @property
    def is_within_limit(self) -> bool:
        return self.ratio <= self.limit


@dataclass(frozen=True)
class Comparison:
    """The same work on two sides."""

    name: str
    make: Callable[[str], Callable[[], object]]
    """Given a side's name, sets the work up and returns what one call does."""
    limit: float
    calls: int
    """Calls in one timing: enough for some milliseconds."""
    rounds: int
    """Timings of each side, in turns; which side goes first alternates."""

    def measure(self, side: str, reference: str) -> Result:
        """Time both sides."""
        work = {name: self.make(name) for name in (side, reference)}
        for call in work.values():
            for _ in range(max(3, self.calls // 10)):
                call()
        times: dict[str, list[float]] = {side: [], reference: []}
        gc.collect()
        gc.disable()
        for index in range(self.rounds):
            for name in (side, reference) if index % 2 else (reference, side):
                times[name].append(self._time(work[name]))
        gc.enable()
        pairs = zip(times[side], times[reference], strict=True)
        return Result(
            self.name,
            median(times[side]),
            median(times[reference]),
            median(mine / theirs for mine, theirs in pairs),
            self.limit,
        )

    def _time(self, call: Callable[[], object]) -> float:
        start = perf_counter()
        for _ in range(self.calls):
            call()
        return (perf_counter() - start) / self.calls


def table(results: list[Result], side: str, reference: str) -> str:
    """A table of ratios, times in microseconds."""
    rows = [f"{'':34}{side + ' us':>14}{reference + ' us':>14}{'ratio':>8}{'limit':>8}"]
    for result in results:
        verdict = "" if result.is_within_limit else "  above"
        rows.append(
            f"{result.name:34}{result.seconds * 1e6:14.1f}{result.reference_seconds * 1e6:14.1f}"
            f"{result.ratio:8.2f}{result.limit:8.2f}{verdict}"
        )
    return "\n".join(rows)


def exit_code(results: list[Result]) -> int:
    """0 if every ratio is within its limit, else 1."""
    return 0 if all(result.is_within_limit for result in results) else 1
