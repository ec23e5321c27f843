"""Finds ranks that are slower than the others, by the time that each takes for itself; see `pace`.

The times come with the heartbeats that the watching processes exchange anyway.
"""

from __future__ import annotations

from typing import NamedTuple

_LEAST_S = 0.002
"""The least difference that counts as slow, however short the steps are."""


class Slow(NamedTuple):
    """Describes a rank that takes longer than the others."""

    rank: int
    is_card: bool
    """Whether its card is slow; else its host is."""
    own_s: float
    others_s: float
    """The median of all ranks."""
    since: float
    """When it became slow, in seconds of `time.monotonic`."""

    def told(self, now: float) -> str:
        """Returns a sentence for the log."""
        what = (
            "its card takes {} for a forward pass"
            if self.is_card
            else "it takes {} from the end of a step to backward, beside waiting for others"
        )
        times = self.own_s / self.others_s
        return (
            f"rank {self.rank} is slow for {now - self.since:.0f} s: "
            f"{what.format(f'{1000 * self.own_s:.1f} ms')}, and the others "
            f"{1000 * self.others_s:.1f} ms ({times:.1f} times)"
        )


class SlowRanks:
    """Compares the paces of the ranks; see `heartbeat_store.Beat.pace`.

    Args:
        factor: A rank is slow that takes more than so many times the median of all ranks.
        for_s: How many seconds without a break a rank must be slow to be named.
    """

    def __init__(self, factor: float, for_s: float) -> None:
        self.factor, self.for_s = factor, for_s
        self._since: dict[tuple[int, bool], float] = {}
        self._told: set[tuple[int, bool]] = set()

    def look(self, paces: dict[int, tuple[float, float]], now: float) -> list[Slow]:
        """Returns the ranks that have become slow; each one only once, until it recovers.

        Args:
            paces: For each rank that trains, the seconds of its host and of its card, 0 if unknown.
            now: The time, in seconds of `time.monotonic`.
        """
        found = []
        for is_card in (False, True):
            times = {rank: pace[is_card] for rank, pace in paces.items() if pace[is_card] > 0}
            if len(times) < 2:
                continue
            # With two ranks this is the faster one: their mean would hide a slow one.
            middle = sorted(times.values())[(len(times) - 1) // 2]
            limit_s = max(self.factor * middle, middle + _LEAST_S)
            for rank in paces:
                key = rank, is_card
                if times.get(rank, 0.0) <= limit_s:
                    self._since.pop(key, None)
                    self._told.discard(key)
                    continue
                since = self._since.setdefault(key, now)
                if now - since >= self.for_s and key not in self._told:
                    self._told.add(key)
                    found.append(Slow(rank, is_card, times[rank], middle, since))
        return found
