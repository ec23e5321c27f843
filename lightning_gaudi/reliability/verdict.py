"""Which rank hangs, judged by what each says of itself: no thread, no store, no clock.

A rank hangs relative to others. Alone it may compile, save or download for as long as it takes. It
hangs if it has not moved for longer than its limit, waits for nobody, and others do wait: they are
in a collective, or further than it. The limit is the watchdog's within training, from the end of a
fit's first step to the end of its last, and the process group's elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SILENT_S = 5.0
"""After how long without a heartbeat a rank is called silent."""

LEFT_S = 10.0
"""How long others may still stand where they are when a rank has left with an error."""

RUNS, LEFT, FAILED = "runs", "left", "failed"


class Beat(NamedTuple):
    """What a rank says of itself, about twice a second."""

    number: int
    """Another one each time."""
    state: str
    """`RUNS`, `LEFT` (its program ended) or `FAILED` (with an error)."""
    step: int
    place: str
    is_training: bool
    position: tuple[int, int]
    collective: str | None
    last_collective: str | None
    still_s: float
    """How long it has been in this place, by its own clock."""

    @classmethod
    def read(cls, values: Sequence[Any]) -> Beat:
        """One that went through JSON."""
        beat = cls(*values)
        return beat._replace(position=(beat.position[0], beat.position[1]))


class Limits(NamedTuple):
    """How long a rank may stand still while others wait, in seconds."""

    training_s: float
    other_s: float


class Verdict(NamedTuple):
    """Why all ranks end."""

    ranks: tuple[int, ...]
    """Those that hang or are dead; none if it cannot be told."""
    reason: str


def judge(
    beats: Mapping[int, Beat], silent_s: Mapping[int, float], limits: Limits
) -> Verdict | None:
    """Whether ranks hang, and which.

    Args:
        beats: The last heartbeat of each rank, or of those that this one knows of.
        silent_s: For how long there has been none since, in seconds.
        limits: How long a rank may stand still.
    """
    running = {rank: beat for rank, beat in beats.items() if beat.state == RUNS}
    still = {rank: beat.still_s + silent_s[rank] for rank, beat in running.items()}
    waiting = [rank for rank in running if _waits(running[rank], silent_s[rank])]
    # Of a silent rank nobody knows where it has come to since: as far as the others, at most.
    is_training = any(beat.is_training for beat in running.values())
    at = {
        rank: beat._replace(is_training=is_training) if silent_s[rank] > SILENT_S else beat
        for rank, beat in running.items()
    }
    late = [
        rank
        for rank, beat in at.items()
        if rank not in waiting and still[rank] > _limit(beat, limits)
    ]
    hung = [rank for rank in late if _is_behind(rank, running, waiting)]
    if hung:
        # What one silent rank has met, others have, some a moment later: their host is cut off.
        is_silent = any(silent_s[rank] > SILENT_S for rank in hung)
        hung += [r for r in running if is_silent and silent_s[r] > SILENT_S and r not in hung]
        hung.sort()
        return Verdict(tuple(hung), _each(hung, running, still, silent_s))
    if gone := _left(beats, running, still, limits):
        return gone
    is_stuck = all(still[rank] > _limit(beat, limits) for rank, beat in running.items())
    if len(running) > 1 and is_stuck and (waiting or any(b.is_training for b in running.values())):
        where = _each(list(running), running, still, silent_s)
        return Verdict((), f"no rank goes on, and none is behind: {where}")
    return None


def _waits(beat: Beat, silent_s: float) -> bool:
    return beat.collective is not None and silent_s < SILENT_S


def _limit(beat: Beat, limits: Limits) -> float:
    return limits.training_s if beat.is_training else limits.other_s


def _is_behind(rank: int, running: Mapping[int, Beat], waiting: list[int]) -> bool:
    beat = running[rank]
    return any(
        other in waiting or (found.is_training and found.position > beat.position)
        for other, found in running.items()
        if other != rank
    )


def _left(
    beats: Mapping[int, Beat],
    running: Mapping[int, Beat],
    still: Mapping[int, float],
    limits: Limits,
) -> Verdict | None:
    """Whether a rank's program has ended while others go on waiting for it."""
    stuck = [rank for rank in running if running[rank].collective or running[rank].is_training]
    if not stuck:
        return None
    stands_s = min(still[rank] for rank in stuck)
    for rank, beat in beats.items():
        limit = {LEFT: limits.training_s, FAILED: LEFT_S}.get(beat.state)
        if limit is not None and stands_s > limit:
            how = "with an error" if beat.state == FAILED else "at its end"
            return Verdict((rank,), f"rank {rank} left {how} after {_where(beat)}, and others wait")
    return None


def _each(
    ranks: list[int],
    running: Mapping[int, Beat],
    still: Mapping[int, float],
    silent_s: Mapping[int, float],
) -> str:
    lines = []
    for rank in ranks:
        beat = running[rank]
        if silent_s[rank] > SILENT_S:
            told = f"is silent for {silent_s[rank]:.0f} s, last heard of in {_where(beat)}"
        else:
            told = f"is for {still[rank]:.0f} s in {_where(beat)}"
        lines.append(f"rank {rank} hangs: it {told}")
    return "; ".join(lines)


def _where(beat: Beat) -> str:
    place = f"the collective {beat.collective}" if beat.collective else beat.place
    last = beat.last_collective or "none"
    return f"step {beat.step}, {place} (last collective: {last})"
