"""Which rank hangs, judged by what each says of itself: no thread, no store, no clock.

A rank hangs relative to others. Alone it may compile, save or download for as long as it takes. It
hangs if it has not moved for longer than its limit, waits for nobody, and others do wait: they are
in a collective, or further than it. The limit is the watchdog's within training, from the end of a
fit's first step to the end of its last, and the process group's elsewhere.

A rank that lets no Python run is in code in C. The vendor's waits for the device are such code:
`hpu.synchronize`, `mark_step` and replaying a graph keep Python's lock (bridge 1.19 and 1.24.0,
`hpu/csrc/bindings.cpp`). So where nothing else tells ranks apart, it waits, and those hang whose
Python runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from lightning_gaudi._core.untrusted import printable

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
    runs_python: bool = True
    """Whether Python runs in it; others of its host say so of one in which it does not."""

    @classmethod
    def read(cls, values: Any) -> Beat:
        """One that went through JSON.

        Raises:
            ValueError: It is none of ours: anybody who reaches the store may write there.
        """
        if not isinstance(values, list) or len(values) != len(cls._fields):
            raise ValueError(f"no heartbeat: {printable(values, max_chars=100)}")
        number, state, step, place, is_training, position, collective, last, still_s, runs = values
        is_whole = (
            all(_is_number(each) for each in (number, step, still_s))
            and state in (RUNS, LEFT, FAILED)
            and isinstance(place, str)
            and isinstance(is_training, bool)
            and isinstance(runs, bool)
            and isinstance(position, list)
            and len(position) == 2
            and all(_is_number(each) for each in position)
            and all(each is None or isinstance(each, str) for each in (collective, last))
        )
        if not is_whole:
            raise ValueError(f"no heartbeat: {printable(values, max_chars=100)}")
        collective, last = (
            None if each is None else printable(each, max_chars=100) for each in (collective, last)
        )
        place, at = printable(place, max_chars=100), (position[0], position[1])
        return cls(number, state, step, place, is_training, at, collective, last, still_s, runs)


class Limits(NamedTuple):
    """How long a rank may stand still while others wait, in seconds."""

    training_s: float
    other_s: float


class Verdict(NamedTuple):
    """Why all ranks end."""

    ranks: tuple[int, ...]
    """Those that hang or are dead; none if it cannot be told."""
    reason: str
    stood: str = ""
    """Where every rank stood."""

    @classmethod
    def read(cls, values: Any, num_ranks: int) -> tuple[Verdict, list[int]]:
        """Returns one that went through JSON, and of which ranks there will be stacks.

        Args:
            values: What it came as.
            num_ranks: How many ranks there are.

        Raises:
            ValueError: It is none of ours: anybody who reaches the store may write there.
        """
        if not isinstance(values, dict):
            raise ValueError(f"no verdict: {printable(values, max_chars=100)}")
        ranks, wanted = values.get("ranks"), values.get("stacks")
        texts = [values.get("reason"), values.get("stood", "")]
        for each in (ranks, wanted):
            if not isinstance(each, list) or any(
                isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_ranks
                for rank in each
            ):
                raise ValueError(f"no verdict: {printable(values, max_chars=100)}")
        if not all(isinstance(each, str) for each in texts):
            raise ValueError(f"no verdict: {printable(values, max_chars=100)}")
        assert isinstance(ranks, list)
        assert isinstance(wanted, list)
        reason, stood = (printable(each, max_chars=4000) for each in texts)
        return cls(tuple(ranks), reason, stood), wanted


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
    if len(running) < 2 or not is_stuck or not (waiting or is_training):
        return None
    in_python = [rank for rank, beat in running.items() if beat.runs_python]
    if 0 < len(in_python) < len(running):
        return Verdict(tuple(in_python), _each(in_python, running, still, silent_s))
    where = _each(list(running), running, still, silent_s)
    return Verdict((), f"no rank goes on, and none is behind: {where}")


def where_all_stand(beats: Mapping[int, Beat], silent_s: Mapping[int, float], num: int) -> str:
    """Returns in one line where every rank stood, those that stood alike together.

    Args:
        beats: The last heartbeats that there are, by rank.
        silent_s: For how long there has been none since, in seconds.
        num: How many ranks there are.
    """
    places: dict[str, list[int]] = {}
    for rank in range(num):
        beat = beats.get(rank)
        if beat is None:
            place = "not known"
        elif beat.state != RUNS:
            place = f"{beat.state} after {_where(beat)}"
        else:
            is_silent = silent_s.get(rank, 0.0) > SILENT_S
            heard = f", as last heard {silent_s[rank]:.0f} s ago" if is_silent else ""
            place = f"{_where(beat)}{heard}"
        places.setdefault(place, []).append(rank)
    return "; ".join(f"{_ranks(ranks)}: {place}" for place, ranks in places.items())


def _ranks(ranks: list[int]) -> str:
    """Returns ranks as a person writes them: `rank 3`, `ranks 0-6, 8`."""
    parts: list[str] = []
    for rank in ranks:
        first, _, last = parts[-1].partition("-") if parts else ("", "", "")
        if parts and int(last or first) == rank - 1:
            parts[-1] = f"{first}-{rank}"
        else:
            parts.append(f"{rank}")
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"


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
    place += "" if beat.runs_python else ", in code that lets no Python run"
    last = beat.last_collective or "none"
    return f"step {beat.step}, {place} (last collective: {last})"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
