"""Judges which rank hangs from what is known of each, without processes, network or clock.

A rank hangs relative to others. Alone it may compile, save or download for as long as it takes. It
hangs if it has not moved for longer than its limit, waits for nobody, and others do wait: they are
in a collective, or further than it. Within training, from the end of a fit's first step to the end
of its last, the limit is the watchdog's. Elsewhere it is the process group's, and so it is where a
rank computes in a call for the card, as when it compiles.

A rank waits if it has noted so, or if its stack shows a call that waits for the card. There it may
run no Python, and seem silent, but it is not to blame as long as another rank is. Of two ranks at
the same place, one in Python and one in C code that holds the GIL, the others wait for the first:
the code that holds the GIL is the vendor's as a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lightning_gaudi.untrusted import printable

from .heartbeat_store import (
    FAILED,
    LEFT,
    MAX_TEXT,
    RUNS,
    SILENT_S,
    STOPPED,
    Beat,
    Limits,
    where,
)

LEFT_S = 10.0
"""How many seconds others may still stand where they are after a rank has left with an error."""

_MAX_LINES = 8


class Verdict(NamedTuple):
    """Says why all ranks end."""

    ranks: tuple[int, ...]
    """The ranks that hang or are dead; empty if that cannot be told."""
    reason: str


def judge(
    beats: Mapping[int, Beat], silent_s: Mapping[int, float], limits: Limits
) -> Verdict | None:
    """Returns which ranks have died or hang; None if none has.

    Args:
        beats: The last heartbeat of each rank that is known.
        silent_s: How many seconds nothing has been heard of each since.
        limits: How long a rank may stand still.
    """
    if dead := _dead(beats):
        return dead
    running = {r: beat for r, beat in beats.items() if beat.state == RUNS and not beat.is_dead}
    still = {rank: beat.still_s + silent_s[rank] for rank, beat in running.items()}
    scene = _Scene(running, still, silent_s, limits)
    if hung := scene.hung():
        return Verdict(tuple(hung), _each(hung, running, still, silent_s))
    if gone := _left(beats, running, still, limits):
        return gone
    if scene.is_stuck():
        where = _each(list(running), running, still, silent_s)
        return Verdict((), f"no rank goes on, and none is behind: {where}")
    return None


class _Scene:
    """Holds the ranks that run, and finds those that hang among them."""

    def __init__(
        self,
        running: Mapping[int, Beat],
        still: Mapping[int, float],
        silent_s: Mapping[int, float],
        limits: Limits,
    ) -> None:
        self._running, self._still, self._silent_s = running, still, silent_s
        self._limits = limits
        # Where a silent rank has come to since is not known; it is as far as the others at most.
        self._is_training = any(beat.is_training for beat in running.values())
        self._notes = {
            rank for rank in running if running[rank].collective and self._is_heard(rank)
        }
        """The ranks that have noted that they wait."""
        self._in_call = {
            rank
            for rank, beat in running.items()
            if beat.waits and self._is_heard(rank) and rank not in self._notes
        }
        """The ranks whose stack shows that they wait, or work, for the card."""
        # Computed once, and not anew for each of what may be thousands of ranks.
        self._furthest = max((b.position for b in running.values() if b.is_training), default=None)
        self._furthest_in_call = max((running[r].position for r in self._in_call), default=None)
        self._witness_s = max((still[r] for r in running if self._is_heard(r)), default=0.0)
        late = [rank for rank in running if rank not in self._notes and self._is_late(rank)]
        self._late = [rank for rank in late if self._has_witness(rank)]

    def _is_heard(self, rank: int) -> bool:
        return self._silent_s[rank] < SILENT_S

    def _limit(self, rank: int) -> float:
        beat = self._running[rank]
        is_training = beat.is_training if self._is_heard(rank) else self._is_training
        is_short = is_training and not beat.is_busy
        return self._limits.training_s if is_short else self._limits.other_s

    def _is_late(self, rank: int) -> bool:
        return self._still[rank] > self._limit(rank)

    def _has_witness(self, rank: int) -> bool:
        """Returns whether another rank, which is heard of, stands still as well as a silent one.

        A host may be silent only because its watching process is, while its ranks train on. Then
        the others do not stand still.
        """
        if self._is_heard(rank):
            return True
        return self._witness_s > self._limit(rank) / 2

    def hung(self) -> list[int]:
        """Returns the ranks that hang, by the most certain sign that any shows."""
        alone = [rank for rank in self._late if rank not in self._in_call]
        found = [rank for rank in alone if self._is_waited_for(rank)]
        if not found and self._is_still():
            in_call = [rank for rank in self._late if rank in self._in_call]
            found = self._behind_all(in_call) if not alone else []
            found = found or self._in_python(alone)
        return self._with_their_host(found)

    def _is_waited_for(self, rank: int) -> bool:
        position = self._running[rank].position
        is_passed = self._furthest is not None and self._furthest > position
        beside = self._furthest_in_call
        return bool(self._notes) or is_passed or (beside is not None and beside >= position)

    def _is_still(self) -> bool:
        return all(self._is_late(rank) or rank in self._notes for rank in self._running)

    def _behind_all(self, in_call: list[int]) -> list[int]:
        """Returns the one rank that is behind all others, if it waits for its card."""
        positions = sorted(b.position for r, b in self._running.items() if r not in self._notes)
        if len(self._running) == 1 or positions[:1] == positions[1:2]:
            return []
        return [rank for rank in in_call if self._running[rank].position == positions[0]]

    def _in_python(self, late: list[int]) -> list[int]:
        """Returns the ranks that stand in Python, if all others run no Python."""
        found = [rank for rank in late if self._running[rank].is_in_python]
        others = [self._running[rank] for rank in self._running.keys() - {*found}]
        front = max((self._running[rank].position for rank in found), default=(0, 0))
        are_held = all(beat.mute_s > SILENT_S and beat.position >= front for beat in others)
        return found if others and are_held else []

    def _with_their_host(self, hung: list[int]) -> list[int]:
        """Returns the ranks, with all that are silent if one of them is.

        Their host is cut off then, and its ranks reach their limits one after the other.
        """
        if any(not self._is_heard(rank) for rank in hung):
            hung = [*{*hung, *(rank for rank in self._running if not self._is_heard(rank))}]
        return sorted(hung)

    def is_stuck(self) -> bool:
        """Returns whether no rank goes on, although none is behind the others."""
        are_late = all(self._still[rank] > self._limit(rank) for rank in self._running)
        return len(self._running) > 1 and are_late and bool(self._notes or self._is_training)


def _dead(beats: Mapping[int, Beat]) -> Verdict | None:
    """Returns a rank whose process has ended without saying so, if others need it."""
    is_needed = any(
        (beat.is_training or beat.collective) and beat.state == RUNS and not beat.is_dead
        for beat in beats.values()
    )
    for rank, beat in beats.items() if is_needed else ():
        if beat.is_dead:
            return Verdict((rank,), f"rank {rank} {beat.ended} in {where(beat)}")
    return None


def _left(
    beats: Mapping[int, Beat],
    running: Mapping[int, Beat],
    still: Mapping[int, float],
    limits: Limits,
) -> Verdict | None:
    """Returns a rank whose program has ended while others wait for it."""
    stuck = [rank for rank in running if running[rank].collective or running[rank].is_training]
    if not stuck:
        return None
    stands_s = min(still[rank] for rank in stuck)
    for rank, beat in beats.items():
        limit = {LEFT: limits.training_s, FAILED: LEFT_S}.get(beat.state)
        if limit is not None and stands_s > limit:
            how = "with an error" if beat.state == FAILED else "at its end"
            return Verdict((rank,), f"rank {rank} left {how} after {where(beat)}, and others wait")
    return None


def _each(
    ranks: Sequence[int],
    running: Mapping[int, Beat],
    still: Mapping[int, float],
    silent_s: Mapping[int, float],
) -> str:
    lines = []
    for rank in ranks[:_MAX_LINES]:
        beat = running[rank]
        if silent_s[rank] > SILENT_S:
            told = f"is silent for {silent_s[rank]:.0f} s, last heard of in {where(beat)}"
        elif beat.ended == STOPPED:
            told = f"is silent for {beat.mute_s:.0f} s, as its process is stopped, in {where(beat)}"
        elif beat.mute_s > SILENT_S:
            told = f"is silent for {beat.mute_s:.0f} s, as it lets no Python run, in {where(beat)}"
        else:
            told = f"is for {still[rank]:.0f} s in {where(beat)}"
        lines.append(f"rank {rank} hangs: it {told}")
    if len(ranks) > _MAX_LINES:
        lines.append(f"and so do {len(ranks) - _MAX_LINES} more ranks")
    return "; ".join(lines)


def account(beats: Mapping[int, Beat], silent_s: Mapping[int, float], num_ranks: int) -> list[str]:
    """Returns lines that say where every rank stood; ranks that stood alike share a line.

    Args:
        beats: The last heartbeat of each rank.
        silent_s: How many seconds nothing has been heard of each since.
        num_ranks: The number of ranks.
    """
    groups: dict[str, list[int]] = {}
    for rank in range(num_ranks):
        beat = beats.get(rank)
        told = "could not be asked" if beat is None else _stood(beat, silent_s[rank])
        groups.setdefault(told, []).append(rank)
    lines = [f"{_ranks(ranks)} {told}" for told, ranks in groups.items()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES} more places"]
    return lines


def _stood(beat: Beat, silent_s: float) -> str:
    """Returns where a rank stood, without the seconds, in which ranks that stand alike differ."""
    told = f"stood in {where(beat)}"
    if beat.state != RUNS:
        return f"had left {'with an error' if beat.state == FAILED else 'at its end'}, and {told}"
    if beat.is_dead:
        return f"{printable(beat.ended, max_chars=MAX_TEXT)}; it {told}"
    if silent_s > SILENT_S:
        return f"could not be asked; when last heard of it {told}"
    if beat.call is not None:
        told += f", in {printable(beat.call, max_chars=MAX_TEXT)}"
    if beat.ended == STOPPED:
        told += ", and its process is stopped"
    elif beat.mute_s > SILENT_S:
        told += ", without letting Python run" + (
            ", in what waits or works for the card" * beat.waits
        )
    return told + (", and computes" * beat.is_busy)


def _ranks(ranks: Iterable[int]) -> str:
    """Returns a name such as "rank 3" or "ranks 0 to 2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(runs) > 1 or len(runs[0]) > 1)} {', '.join(names)}"
