"""The watchdog: a rank that hangs or has died is named, with its stack, and all ranks end.

HCCL waits for a rank for ever. So each rank says twice a second, from a thread, where it is (see
`_core.whereabouts`); rank 0 judges all, everybody judges rank 0, and the ranks of a host see which
of them have died. The thread that trains takes no part: it asks no store and waits for no device.

A rank that waits in the vendor's code may let none of its threads run Python, see `verdict`. The
others of its host see from outside that it lives and where it is, and end it when all end; where
none of a host runs Python, its `vigil` does.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from lightning_gaudi._core import farewell, processes, whereabouts
from lightning_gaudi._core.rank_monitor import STOPPED, say

from . import stacks, vigil
from .board import Board
from .lookout import PATIENCE_S as _PATIENCE_S, Lookout, mark
from .stacks import Process
from .verdict import (
    FAILED,
    LEFT,
    LEFT_S,
    RUNS,
    SILENT_S,
    Beat,
    Limits,
    Verdict,
    judge,
    where_all_stand,
)

_POLL_S = 0.25
_STACKS_S = 3.0
_MARGIN_S = 5.0

FIRST_BEAT = Beat(0, RUNS, 0, "the start", False, (0, 0), None, None, 0.0)
"""What a rank writes before the others listen."""

_current: Watchdog | None = None
_group: object = None
"""The process group whose ranks are watched, or were."""


def limits(timeout: timedelta, wanted_s: float | None) -> Limits:
    """How long a rank may stand still.

    The process group's own timeout raises in those that wait, and knows no names: the watchdog
    comes a moment before it.

    Args:
        timeout: The process group's.
        wanted_s: The user's, for training.
    """
    group_s = timeout.total_seconds()
    other_s = group_s - min(_MARGIN_S, group_s / 10)
    return Limits(min(wanted_s or other_s, other_s), other_s)


def knows(group: object) -> bool:
    """Whether this process group was the last whose ranks were watched."""
    return _group is group


def start(group: object, board: Board, rank: int, others: Sequence[Process], found: Limits) -> None:
    """Watch the ranks of a process group, all of which have written on their boards.

    Args:
        group: Whose ranks they are.
        board: This rank's.
        rank: This one.
        others: The processes of all ranks, by rank.
        found: How long they may stand still.
    """
    global _current, _group
    stop()
    _group = group
    _current = Watchdog(board, rank, others, found)
    processes.before_failing(_current.explain)


def change(found: Limits | None) -> None:
    """Take other limits, or watch no longer (None)."""
    if found is None:
        stop()
    elif _current is not None:
        _current.limits = found


@atexit.register
def stop() -> None:
    """Watch no longer; the others are told that this rank leaves."""
    global _current
    watchdog, _current = _current, None
    if watchdog is not None:
        watchdog.stop()


class Watchdog:
    """Watches the other ranks for this one; see `start`."""

    def __init__(self, board: Board, rank: int, others: Sequence[Process], found: Limits) -> None:
        self.limits = found
        self._board, self._rank = board, rank
        self._size = len(others)
        self._hosts = [process.host for process in others]
        self._pid = os.getpid()
        self._own = others[rank]
        self._local = {
            other: process
            for other, process in enumerate(others)
            if process.host == others[rank].host and other != rank
        }
        self._lookout = Lookout(self._local, board.name)
        self._page = whereabouts.share()
        self._vigil_at = time.monotonic() + vigil.AFTER_S
        self._stood = ""
        self._cut_off = set[str]()
        """Hosts of which nobody has been heard of for a while."""
        self._number = 0
        self._state = RUNS
        self._is_over = threading.Event()
        self._page.tick(mark(RUNS, board.name))
        listens_to = range(self._size) if rank == 0 else sorted({0, *self._local} - {rank})
        board.start(self._beats, [each for each in listens_to if each != rank])
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say that this rank leaves, and end the threads."""
        if os.getpid() != self._pid:
            return  # a fork, which has no threads
        self._state = FAILED if processes.has_failed() else LEFT
        self._page.tick(mark(self._state, self._board.name))
        self._is_over.set()
        self._board.close(_PATIENCE_S)
        stacks.close()

    def explain(self) -> None:
        """Say which rank has failed or was killed before, which may be why this one fails."""
        end, rounds = time.monotonic() + _PATIENCE_S, self._board.num_rounds
        while time.monotonic() < end and not self._is_over.is_set():
            is_fresh = self._board.num_rounds > rounds + 1 or not self._board.answers
            reason = farewell.why_another_failed()
            if reason is None and is_fresh and (dead := self._dead()) is not None:
                reason = dead.reason
            if reason is not None:
                say(f"[rank: {self._rank}] fails because {reason}")
                return
            time.sleep(_POLL_S)

    def _beats(self) -> dict[int, Beat]:
        return {self._rank: self._beat()}

    def _beat(self) -> Beat:
        self._number += 1
        now = whereabouts.now()
        return Beat(
            self._number,
            self._state,
            now.step,
            now.place,
            now.is_training,
            now.position,
            now.collective,
            now.last_collective,
            time.monotonic() - now.since,
        )

    def _run(self) -> None:
        proposed_at, own = 0.0, None
        while not self._is_over.wait(_POLL_S if own is None else _POLL_S / 5):
            self._page.tick(mark(self._state, self._board.name))
            self._keep_vigil()
            if self._board.verdict is not None:
                self._end(*self._board.verdict)
            elif own is None and (own := self._judge()) is not None:
                own = own._replace(stood=self._stood)
                proposed_at = time.monotonic()
                self._board.propose({**own._asdict(), "stacks": self._whose_stacks(own)})
            elif own is not None and time.monotonic() - proposed_at > _PATIENCE_S:
                self._end(own, self._whose_stacks(own))  # the store does not answer

    def _keep_vigil(self) -> None:
        """Starts the vigil of this host, as one rank of it does, if the run takes longer."""
        is_first = self._rank == min([self._rank, *self._local])
        if is_first and time.monotonic() > self._vigil_at:
            self._vigil_at = math.inf
            vigil.start(
                self._board, {**self._local, self._rank: self._own}, self._size, self.limits
            )

    def _judge(self) -> Verdict | None:
        me = self._beat()
        beats, silent_s = self._lookout.see(self._board.beats)
        beats, silent_s = beats | {self._rank: me}, silent_s | {self._rank: 0.0}
        hosts = {rank: self._hosts[rank] for rank in beats}
        self._cut_off = {
            host
            for host in hosts.values()
            if all(silent_s[rank] > SILENT_S for rank in hosts if hosts[rank] == host)
        }
        self._stood = where_all_stand(beats, silent_s, self._size)
        if (me.is_training or me.collective) and (dead := self._dead()) is not None:
            return dead
        if self._board.is_lost:
            return self._without_store(me)
        if self._rank != 0 and not self._judges_all():
            if silent_s.get(0, 0.0) < SILENT_S:
                return None  # rank 0 judges, or the vigil of its host
            beats = {rank: beats[rank] for rank in (0, self._rank)}
        return judge(beats, silent_s, self.limits)

    def _judges_all(self) -> bool:
        """Whether rank 0 cannot, and this is the first of the others, which knows all."""
        unable = self._lookout.without_python()
        able = {self._rank, *self._local} - unable.keys()
        return 0 in unable and len(self._local) == self._size - 1 and self._rank == min(able)

    def _without_store(self, me: Beat) -> Verdict | None:
        """The store went with the process that held it, which matters to who needs the others."""
        if me.still_s < LEFT_S or not (me.is_training or me.collective):
            return None
        return Verdict((0,), "the process that holds the store, as a rule rank 0's, is gone")

    def _dead(self) -> Verdict | None:
        """A rank of this host that has ended without a word."""
        for rank, process in self._local.items():
            how = stacks.how(process)
            if how is None or how == "is stopped" or not self._is_unexpected(rank, how):
                continue
            found = self._board.beats.get(rank)
            beat = None if found is None else found[0]
            where = "" if beat is None else f" in step {beat.step}, {beat.place}"
            last = "" if beat is None else f" (last collective: {beat.last_collective or 'none'})"
            return Verdict((rank,), f"rank {rank} (process {process.pid}) {how}{where}{last}")
        return None

    def _is_unexpected(self, rank: int, how: str) -> bool:
        found = self._board.beats.get(rank)
        if found is not None and found[0].state != RUNS:
            return False
        return how not in ("ended with exit status 0", f"ended with exit status {STOPPED}")

    def _whose_stacks(self, verdict: Verdict) -> list[int]:
        found = [rank for rank in verdict.ranks or range(self._size) if self._may_answer(rank)]
        return found[: vigil.MAX_STACKS]

    def _may_answer(self, rank: int) -> bool:
        return not self._has_ended(rank) and self._hosts[rank] not in self._cut_off

    def _has_ended(self, rank: int) -> bool:
        process = self._local.get(rank)
        return process is not None and stacks.how(process) not in (None, "is stopped")

    def _end(self, verdict: Verdict, wanted: list[int]) -> None:
        """Say why, with the stacks of those who are to blame, and end this process."""
        if self._rank in wanted:
            self._board.tell_stack(self._rank, stacks.of_main_thread())
            self._board.stacks[self._rank] = stacks.of_main_thread()
        self._collect(wanted)
        for rank in wanted:
            stack = self._board.stacks.get(rank, "").rstrip() or "  not to be had"
            say(f"the Python stack of rank {rank}:\n{stack}\n")
        say(f"[rank: {self._rank}] ends: {verdict.reason}")
        if verdict.stood and self._is_helper(verdict):
            say(f"[rank: {self._rank}] where all stood: {verdict.stood}")
        if self._rank not in verdict.ranks:
            self._board.say_seen()
        self._linger(verdict)
        if self._is_helper(verdict):
            self._end_others(verdict)
        stacks.close()
        processes.end_now()

    def _end_others(self, verdict: Verdict) -> None:
        """Ends the ranks of this host that cannot do it: those to blame, and without Python."""
        for rank in sorted(self._lookout.without_python().keys() - {*verdict.ranks}):
            say(f"[rank: {rank}] ends: {verdict.reason}")
            stacks.kill(self._local[rank])
        for rank in verdict.ranks:
            if rank in self._local:
                stacks.kill(self._local[rank])

    def _collect(self, wanted: list[int]) -> None:
        """Wait for stacks; from a rank beside this one that gives none, take it."""
        begun, found, asked = time.monotonic(), self._board.stacks, set[int]()
        while time.monotonic() - begun < _STACKS_S and (missing := set(wanted) - found.keys()):
            is_due = time.monotonic() - begun > _STACKS_S / 2 or not self._board.answers
            for rank in missing & self._local.keys() - asked if is_due else ():
                asked.add(rank)
                if stack := stacks.of_other(self._local[rank]):
                    found[rank] = stack  # its own is of a later moment, if it goes on
                    self._board.tell_stack(rank, stack)
            time.sleep(_POLL_S / 5)

    def _is_helper(self, verdict: Verdict) -> bool:
        """Whether this is the first rank of its host that can help, and is not to blame if one is.

        Where all that run Python are to blame, the first of them ends those that wait in the
        vendor's code.
        """
        able = {self._rank, *self._local} - self._lookout.without_python().keys()
        return self._rank == min(able - {*verdict.ranks} or able)

    def _linger(self, verdict: Verdict) -> None:
        """Leave the store to the others until they have read it, and ranks to end by themselves."""
        others = set(range(self._size)) - {*verdict.ranks, *self._lookout.without_python()}
        expected = sum(self._may_answer(rank) for rank in others)
        waits_s = _STACKS_S if self._rank == 0 else _PATIENCE_S
        end = time.monotonic() + waits_s
        while time.monotonic() < end and self._board.answers and self._board.num_seen < expected:
            time.sleep(_POLL_S / 5)
