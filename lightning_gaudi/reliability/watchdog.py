"""The watchdog names a rank that hangs or has died, with its stack, and ends all ranks.

HCCL waits for a rank forever. So each rank notes where it is (`_core.progress`) in memory that it
shares with a process beside it. There is one such process on each host, which watches all ranks of
that host and judges (`watcher`). The thread that trains takes no part, and no rank needs its GIL to
be seen alive.

This module has the part of each rank. The first rank of a host starts that process, and a thread
ends the rank when the process says so. If the thread cannot run, the process kills the rank.
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
"""The variables that a Python may need to start; the watching process gets no other."""

_START = (
    "import sys; sys.path.append(sys.argv[1]); sys.dont_write_bytecode = True; "
    "from lightning_gaudi.reliability import watcher; watcher.main()"
)

_current: Watchdog | None = None
_group: object = None
"""The process group whose ranks are watched, or were watched last."""


def limits(timeout: timedelta, wanted_s: float | None) -> Limits:
    """Returns how long a rank may stand still.

    The process group's own timeout raises in the ranks that wait, and does not say for whom. So
    the watchdog's limit is a moment shorter.

    Args:
        timeout: The timeout of the process group.
        wanted_s: The user's limit in training, in seconds; None for that of the group.
    """
    group_s = timeout.total_seconds()
    other_s = group_s - min(_MARGIN_S, group_s / 10)
    return Limits(min(wanted_s or other_s, other_s), other_s)


def knows(group: object) -> bool:
    """Returns whether this process group was the last whose ranks were watched."""
    return _group is group


class Meeting:
    """Holds what the ranks tell each other before they are watched.

    Args:
        rank: This process's rank.
        others: The processes of all ranks, by rank.
        key: The key with which the hosts' watching processes sign; see `links`.
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
        """The address at which rank 0's host listens; None with a single host."""
        self.listener: socket.socket | None = None


def start(group: object, board: Board, meeting: Meeting) -> None:
    """Starts to watch the ranks of a process group.

    Args:
        group: The process group.
        board: This rank's board.
        meeting: What the ranks have told each other.
    """
    global _current, _group
    stop()
    _group = group
    _current = Watchdog(board, meeting)
    util.Finalize(None, stop, exitpriority=0)  # a fork of `multiprocessing` runs no `atexit`
    processes.before_failing(_current.explain)


def change(found: Limits | None) -> None:
    """Sets other limits for this rank; None stops watching it."""
    if found is None:
        stop()
    elif _current is not None:
        _current.board.limits = found


def slow_ranks() -> list[str]:
    """Returns, on rank 0, what was said of slow ranks, the newest last."""
    return [] if _current is None else _current.board.news


@atexit.register
def stop() -> None:
    """Stops watching this rank; the others are told that it leaves."""
    global _current
    watchdog, _current = _current, None
    if watchdog is not None:
        watchdog.stop()


class Watchdog:
    """Does a rank's part in being watched; see `start`."""

    def __init__(self, board: Board, meeting: Meeting) -> None:
        self.board, self._rank = board, meeting.rank
        self._pid = os.getpid()
        self._is_over = threading.Event()
        self._others: dict[int, WatchedRank] = {}
        for rank, process in meeting.local.items():
            with contextlib.suppress(OSError):  # raised if the rank has ended already
                if rank != meeting.rank:
                    self._others[rank] = WatchedRank(process)
        progress.copy_to(board.memory)
        is_first = min(meeting.local) == meeting.rank
        self._watcher = _start_watcher(meeting) if is_first else None
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Notes that this rank leaves, and ends its thread; the watching process may go on."""
        if os.getpid() != self._pid:
            return  # a fork has none of these threads, and must not speak for its parent
        self.board.state = FAILED if processes.has_failed() else LEFT
        progress.copy_to(None)
        self._is_over.set()
        self._thread.join(_PATIENCE_S)
        stacks.close()
        if self._watcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watcher.wait(_PATIENCE_S)
            # The process ends with the ranks that are left, and nobody waits for it. Without a
            # return code `Popen` would warn that it still runs.
            self._watcher.returncode = self._watcher.returncode or 0

    def explain(self) -> None:
        """Says which other rank failed or was killed before, which may be why this one fails."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and not self._is_over.is_set():
            reason = farewell.why_another_failed() or self._who_is_dead()
            if reason is not None:
                say(f"[rank: {self._rank}] fails because {reason}")
                return
            time.sleep(_POLL_S)

    def _who_is_dead(self) -> str | None:
        """Returns which rank of this host has died, and where it was; None if none has."""
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
        """Says why this process ends, waits until this host's others have said so, and ends it.

        It waits since the process that has started the others kills them when it ends.
        """
        say(f"[rank: {self._rank}] ends: {reason}")
        self.board.note_read()
        end = time.monotonic() + _TOGETHER_S
        while not self.board.may_end and time.monotonic() < end:
            time.sleep(_POLL_S / 10)
        processes.end_now()

    def _check_watcher(self) -> None:
        """Says once that the watching process has ended, as when a user kills all of its name."""
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
    """Starts the process that watches the ranks of this host; returns None if it cannot start."""
    command = [sys.executable, "-I", "-S", "-c", _START, _root(), "lightning-gaudi-watchdog"]
    listener = meeting.listener
    # Opened here, so that a rank that dies before the process has started still leaves its board.
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
    # The new process inherits this mask, so that no signal ends it before it ignores them itself.
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
    """Opens the board of a rank of this host; returns None if the rank has ended already."""
    try:
        return os.open(process.board, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def _root() -> str:
    """Returns the folder that holds this package, for the new process's `sys.path`."""
    assert lightning_gaudi.__file__ is not None
    return str(Path(lightning_gaudi.__file__).resolve().parents[1])
