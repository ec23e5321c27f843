"""Ranks of one node that were started together, and end together.

The process that started the others (it is local rank 0, or waits for all of them) ends last. If one
of them fails, the others may still say what they have to say, and are then ended; if it dies
itself, they notice. So no process is left behind that holds a card.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from . import rank_monitor
from .rank_monitor import RankMonitor, say
from .variables import read_integer

if TYPE_CHECKING:
    from .rank_monitor import Process

PARENT = "_LIGHTNING_GAUDI_PARENT"
"""The process that has started this one as another rank of its node."""


@contextlib.contextmanager
def as_parent() -> Iterator[None]:
    """Have the processes that are started in this context watch this one."""
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(PARENT, None)


def watch_parent(parent: int | None = None) -> None:
    """End this process soon after the one that has started it, if that is a rank of ours.

    Args:
        parent: The process to watch; by default what the environment says, where it does.
    """
    if parent is None:
        parent = read_integer(PARENT, 0)
        os.environ.pop(PARENT, None)
        # A process that another rank has started inherits its environment.
        if not parent or (parent != os.getppid() and _is_alive(parent)):
            return
    threading.Thread(target=_follow, args=(parent,), name="parent-watch", daemon=True).start()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(rank_monitor.POLL_S)
    # This rank may be about to say what went wrong.
    time.sleep(rank_monitor.GRACE_S / 2)
    say(f"local rank {os.environ.get('LOCAL_RANK')} ends because the process that started it died")
    _exit_now()


_started: _Started | None = None


def start(processes: Sequence[Process]) -> None:
    """Have the processes, the local ranks from 1 on, end with this one, which is local rank 0."""
    global _started
    _started = _Started(RankMonitor(lambda: processes, first_rank=1))


class _Started:
    """What this process has started by running its script again, until it ends."""

    def __init__(self, ranks: RankMonitor) -> None:
        self._ranks = ranks
        self._pid = os.getpid()
        self.has_failed = False
        ranks.watch(_exit_now)
        atexit.register(self._at_exit)

    def fail(self) -> None:
        """Remember that this process has failed; what it has started ends when it does."""
        self.has_failed = True
        # Before what was registered since, such as leaving the process group, which may not return
        # while others wait in a collective.
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)

    def kill(self) -> None:
        """End what this process has started."""
        self._ranks.kill()

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of it
        try:
            # The interpreter has shown an exception that nobody caught.
            if self.has_failed or hasattr(sys, "last_value"):
                self._ranks.unwatch()
                self._ranks.wait(rank_monitor.GRACE_S)
            else:
                self._ranks.wait()
        finally:
            self._ranks.unwatch()
            self._ranks.report()
            self._ranks.kill()


_has_failed = False
_before_failing: Callable[[], None] = lambda: None  # noqa: E731 - there is nothing to do


def has_failed() -> bool:
    """Whether this rank's last task, or the program, ended with an error."""
    return _has_failed or hasattr(sys, "last_value")


def before_failing(function: Callable[[], None]) -> None:
    """Have a function called when a rank's task ends with an error, to say what it knows."""
    global _before_failing
    _before_failing = function


@contextlib.contextmanager
def rank(number: int) -> Iterator[None]:
    """Say of an error which rank it is on, and end the ranks that this process has started.

    They end when the process does: a caller may still catch the error, on all ranks alike.
    """
    global _has_failed
    _has_failed = False
    try:
        yield
    except BaseException as error:
        _has_failed = not _is_normal_exit(error)
        if isinstance(error, Exception):
            text = str(error).strip().split("\n")[0]
            say(f"[rank: {number}] {type(error).__name__}: {text}")
            _before_failing()
        if _started is not None and _has_failed:
            _started.fail()
        raise
    if _started is not None:
        _started.has_failed = False


def _is_normal_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0, rank_monitor.STOPPED)


@contextlib.contextmanager
def joined(processes: Callable[[], Sequence[Process]]) -> Iterator[None]:
    """Have the processes, all local ranks, end together and before this context does.

    Whoever is in it waits for them, and raises and says so when one has failed; the others are
    killed if they do not end then. A SIGTERM is theirs, too, and the exit status then 143.

    Args:
        processes: Those that have been started so far.

    Raises:
        SystemExit: They were ended by a SIGTERM.
    """
    ranks = RankMonitor(processes, first_rank=0, is_quiet=True)
    ranks.watch(lambda: None)
    try:
        with _passing_on(signal.SIGTERM, processes) as received:
            yield
    except BaseException as error:
        was_stopped = bool(received) or ranks.were_stopped()
        ranks.wait(rank_monitor.STOP_S if was_stopped else rank_monitor.GRACE_S)
        ranks.kill()
        if was_stopped:
            raise SystemExit(rank_monitor.STOPPED) from error
        raise
    finally:
        ranks.unwatch()


@contextlib.contextmanager
def _passing_on(
    signum: signal.Signals, processes: Callable[[], Sequence[Process]]
) -> Iterator[list[int]]:
    """Send a signal on to processes, which decide; the list has it once it came."""
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        for process in processes():
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signum, pass_on)
    try:
        yield received
    finally:
        signal.signal(signum, before)


def end_now() -> None:
    """End this process and the ranks that it has started, at once, with exit status 1."""
    if _started is not None:
        _started.kill()
    _exit_now()


def _exit_now() -> None:
    """End this process, whatever its main thread waits for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
