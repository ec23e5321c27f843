"""The watchdog: a rank that hangs or has died is named, with its stack, and all ranks end.

HCCL waits for a rank for ever. So each rank notes where it is (`_core.progress`) in memory that
it shares with a process beside it, one a host, which watches all ranks of that host and judges
(`watcher`). The thread that trains takes no part, and no rank needs its GIL to be seen alive.

What is left to each rank is here: it starts that process if it is the first of its host, and ends
when it is told to, in a thread. If that cannot run, the process kills the rank.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import util
from pathlib import Path

import lightning_gaudi
from lightning_gaudi._core import processes, progress
from lightning_gaudi._core.processes import farewell
from lightning_gaudi._core.processes.rank_monitor import say

from . import stacks
from .heartbeat_store import FAILED, LEFT, RUNS, SURVIVED, Board, Limits, where
from .stacks import Process
from .watched import WatchedRank

_POLL_S = 0.25
_PATIENCE_S = 2.0
_TOGETHER_S = 3.0
_MARGIN_S = 5.0

_KEPT = ("LD_LIBRARY_PATH", "PYTHONHOME")
"""The variables with which a Python may need to start. No other is for the watching process."""

_START = (
    "import sys; sys.path.append(sys.argv[1]); sys.dont_write_bytecode = True; "
    "from lightning_gaudi.reliability import watcher; watcher.main()"
)

_current: Watchdog | None = None
_group: object = None
"""The process group whose ranks are watched, or were."""


def limits(timeout: timedelta, wanted_s: float | None) -> Limits:
    """Returns how long a rank may stand still.

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
    """Returns whether this process group was the last whose ranks were watched."""
    return _group is group


class Meeting:
    """What the ranks tell each other before they are watched.

    Args:
        rank: This one.
        others: The processes of all ranks, by rank.
        key: What the hosts' watching processes sign with; see `links`.
    """

    def __init__(self, rank: int, others: Sequence[Process], key: str) -> None:
        self.rank, self.others, self.key = rank, others, key
        names = {host: i for i, host in enumerate(dict.fromkeys(each.host for each in others))}
        self.hosts = [names[process.host] for process in others]
        """The number of the host of each rank."""
        self.is_one_machine = len({name.split()[0] for name in names}) == 1
        self.local = {
            other: process
            for other, process in enumerate(others)
            if process.host == others[rank].host
        }
        self.address: tuple[str, int] | None = None
        """Where rank 0's host listens; None where there is one host."""
        self.listener: socket.socket | None = None


def start(group: object, board: Board, meeting: Meeting) -> None:
    """Starts to watch the ranks of a process group.

    Args:
        group: Whose ranks they are.
        board: This rank's.
        meeting: What they have told each other.
    """
    global _current, _group
    stop()
    _group = group
    _current = Watchdog(board, meeting)
    util.Finalize(None, stop, exitpriority=0)  # a fork of `multiprocessing` runs no `atexit`
    processes.before_failing(_current.explain)


def change(found: Limits | None) -> None:
    """Takes other limits, or has this rank watched no longer (None)."""
    if found is None:
        stop()
    elif _current is not None:
        _current.board.limits = found


def slow_ranks() -> list[str]:
    """Returns what was said of slow ranks, for rank 0; the newest last."""
    return [] if _current is None else _current.board.news


@atexit.register
def stop() -> None:
    """Stops watching this rank; the others are told that it leaves."""
    global _current
    watchdog, _current = _current, None
    if watchdog is not None:
        watchdog.stop()


class Watchdog:
    """What a rank does to be watched; see `start`."""

    def __init__(self, board: Board, meeting: Meeting) -> None:
        self.board, self._rank = board, meeting.rank
        self._pid = os.getpid()
        self._is_over = threading.Event()
        self._others: dict[int, WatchedRank] = {}
        for rank, process in meeting.local.items():
            with contextlib.suppress(OSError):  # it has ended already
                if rank != meeting.rank:
                    self._others[rank] = WatchedRank(process)
        progress.copy_to(board.memory)
        is_first = min(meeting.local) == meeting.rank
        self._watcher = _start_watcher(meeting) if is_first else None
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Says that this rank leaves, and ends what it has started, unless others still need it."""
        if os.getpid() != self._pid:
            return  # a fork, which has no threads
        self.board.state = FAILED if processes.has_failed() else LEFT
        progress.copy_to(None)
        self._is_over.set()
        self._thread.join(_PATIENCE_S)
        stacks.close()
        if self._watcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watcher.wait(_PATIENCE_S)
            # It ends with the ranks that are left, and nobody waits for it.
            self._watcher.returncode = self._watcher.returncode or 0

    def explain(self) -> None:
        """Says which rank has failed or was killed before, which may be why this one fails."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and not self._is_over.is_set():
            reason = farewell.why_another_failed() or self._who_is_dead()
            if reason is not None:
                say(f"[rank: {self._rank}] fails because {reason}")
                return
            time.sleep(_POLL_S)

    def _who_is_dead(self) -> str | None:
        """Returns which rank of this host has died, and where."""
        for rank, other in self._others.items():
            beat = other.beat()
            if beat.is_dead:
                return f"rank {rank} {beat.ended} in {where(beat)}"
        return None

    def _run(self) -> None:
        while not self._is_over.wait(_POLL_S):
            self.board.note_python()
            if self.board.is_stack_wanted:
                self.board.give_stack(stacks.of_main_thread())
            if reason := self.board.order:
                self._end(reason)
            self._check_watcher()

    def _end(self, reason: str) -> None:
        """Says why, waits for the others of this host to have said so too, and ends this process.

        The process that has started the others kills them as it ends.
        """
        say(f"[rank: {self._rank}] ends: {reason}")
        self.board.note_read()
        end = time.monotonic() + _TOGETHER_S
        while not self.board.may_end and time.monotonic() < end:
            time.sleep(_POLL_S / 10)
        processes.end_now()

    def _check_watcher(self) -> None:
        """Says once that nobody watches any more, as after somebody has killed all of a name."""
        if self._watcher is None or (status := self._watcher.poll()) is None:
            return
        self._watcher = None
        if self.board.state == RUNS and not self.board.order:
            say(
                f"[rank: {self._rank}] the process that watches the ranks of this host has ended "
                f"with status {status}: a rank that hangs is not named before the timeout of the "
                "process group"
            )


def _start_watcher(meeting: Meeting) -> subprocess.Popen[str] | None:
    """Starts the process that watches the ranks of this host; None where there is no Python."""
    command = [sys.executable, "-I", "-S", "-c", _START, _root(), "lightning-gaudi-watchdog"]
    listener = meeting.listener
    # Opened here: a rank that dies before the process has started has left its board.
    boards = {rank: _board_of(process) for rank, process in meeting.local.items()}
    passed = [each for each in boards.values() if each is not None]
    task = {
        "key": meeting.key,
        "host": meeting.hosts[meeting.rank],
        "hosts": meeting.hosts,
        "ranks": {
            rank: process._replace(board=f"/proc/self/fd/{boards[rank]}")
            for rank, process in meeting.local.items()
        },
        "address": meeting.address,
        "listener": None if listener is None else listener.fileno(),
        "hl_smi": shutil.which("hl-smi"),
    }
    # Blocked until it ignores them, which it does once it has imported what it needs.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)
    try:
        watcher = subprocess.Popen(
            command,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            stdin=subprocess.PIPE,
            pass_fds=passed if listener is None else (*passed, listener.fileno()),
            text=True,
        )
        assert watcher.stdin is not None
        with contextlib.suppress(OSError), watcher.stdin as stdin:
            json.dump(task, stdin)
        return watcher
    except OSError as error:
        say(f"[rank: {meeting.rank}] no rank of this host is watched: {command[0]}: {error}")
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for descriptor in passed:
            os.close(descriptor)
        if listener is not None:
            listener.close()


def _board_of(process: Process) -> int | None:
    """Opens the board of a rank of this host; None if that has ended already."""
    try:
        return os.open(process.board, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def _root() -> str:
    """Returns the folder with this package, whatever has been imported from where."""
    assert lightning_gaudi.__file__ is not None
    return str(Path(lightning_gaudi.__file__).resolve().parents[1])
