"""Which ranks are slower than the others, by what each takes for itself: see `pace`.

Nobody is asked: it comes with what the processes that watch the ranks tell each other anyway.
"""

from __future__ import annotations

from typing import NamedTuple

_LEAST_S = 0.002
"""What others differ by is no slowness, however short their steps are."""


class Slow(NamedTuple):
    """A rank that takes longer than the others."""

    rank: int
    is_card: bool
    """Whether that is the time of its card, else of its host."""
    own_s: float
    others_s: float
    """The median of all ranks."""
    since: float
    """When it became so, in seconds of `time.monotonic`."""

    def told(self, now: float) -> str:
        """Returns it as a sentence for the log."""
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
    """Compares the ranks, from what is known of each anyway: see `heartbeat_store.Beat.pace`.

    Args:
        factor: How many times the median of all a rank takes that is slow.
        for_s: For how long, without a break.
    """

    def __init__(self, factor: float, for_s: float) -> None:
        self.factor, self.for_s = factor, for_s
        self._since: dict[tuple[int, bool], float] = {}
        self._told: set[tuple[int, bool]] = set()

    def look(self, paces: dict[int, tuple[float, float]], now: float) -> list[Slow]:
        """Returns ranks that have become slow, each once until it is slow no more.

        Args:
            paces: By rank that trains: seconds of the host, and of the card, or 0 if not known.
            now: In seconds.
        """
        found = []
        for is_card in (False, True):
            times = {rank: pace[is_card] for rank, pace in paces.items() if pace[is_card] > 0}
            if len(times) < 2:
                continue
            middle = sorted(times.values())[(len(times) - 1) // 2]  # of two the faster
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
