"""Processes of this machine, and the ranks of one node, which start and end together.

The process that started the others (it is local rank 0, or waits for all of them) ends last. If one
of them fails, the others may still say what they have to say, and are then ended; if it dies
itself, they notice. So no process is left behind that holds a card.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from lightning_gaudi._core import call_last
from lightning_gaudi.untrusted import read_integer

from . import exit_status, rank_monitor
from .rank_monitor import RankMonitor, say

if TYPE_CHECKING:
    from .rank_monitor import Process

PARENT = "_LIGHTNING_GAUDI_PARENT"
"""The process that has started this one as another rank of its node."""

_LEAVE_S = rank_monitor.GRACE_S + 3.0
"""How long `leave` may take."""


@contextlib.contextmanager
def as_parent() -> Iterator[None]:
    """Lets the processes that are started in this context watch this one."""
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(PARENT, None)


def watch_parent(parent: int | None = None) -> None:
    """Ends this process soon after the one that has started it, if that is a rank of ours.

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
    except (ProcessLookupError, OverflowError):
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
    """Ends the processes, the local ranks from 1 on, with this one, which is local rank 0."""
    global _started
    _started = _Started(RankMonitor(lambda: processes, first_rank=1), processes)


def interrupt_started() -> None:
    """Ends what this process has started as Ctrl-C does; this one was ended by it."""
    if _started is not None:
        _started.interrupt()


class _Started:
    """What this process has started by running its script again, until it ends."""

    def __init__(self, ranks: RankMonitor, processes: Sequence[Process]) -> None:
        self._ranks = ranks
        self._processes = processes
        self._pid = os.getpid()
        ranks.watch(_exit_now)
        call_last(self.end)

    def kill(self) -> None:
        """Ends what this process has started."""
        self._ranks.kill()

    def end(self, *, within_s: float | None = None) -> None:
        """Waits until what this process has started has ended, and ends what has not.

        Args:
            within_s: How long they may take; by default as long as they want, unless an error ends
                this process.
        """
        if os.getpid() != self._pid:
            return  # a fork of it
        if within_s is None and _ends_with_error():
            within_s = rank_monitor.GRACE_S
        try:
            if within_s is not None:
                self._ranks.unwatch()
            self._ranks.wait(within_s)
        finally:
            self._ranks.unwatch()
            self._ranks.report()
            self._ranks.kill()

    def interrupt(self) -> None:
        """Ends them soon, as Ctrl-C does; how they ended is not reported."""
        self._ranks.is_quiet = True
        self._ranks.unwatch()
        _send(signal.SIGINT, self._processes)
        self.end(within_s=rank_monitor.GRACE_S)


_has_failed = False
_is_leaving = False
_before_failing: Callable[[], None] = lambda: None  # noqa: E731 - there is nothing to do
_before_leaving: Callable[[], None] = lambda: None  # noqa: E731 - there is nothing to do


def has_failed() -> bool:
    """Returns whether this rank's last task, or the program, ended with an error."""
    return _has_failed or _ends_with_error()


def _ends_with_error() -> bool:
    error = exit_status.error()
    return error is not None and not _is_normal_exit(error)


def before_failing(function: Callable[[], None]) -> None:
    """Calls a function when a rank's task ends with an error, to say what it knows."""
    global _before_failing
    _before_failing = function


def before_leaving(function: Callable[[], None]) -> None:
    """Calls a function when this rank ends by `leave`, to tell the other ranks."""
    global _before_leaving
    _before_leaving = function


@contextlib.contextmanager
def rank(number: int) -> Iterator[None]:
    """Says of an error which rank it is on.

    A caller may still catch the error, on all ranks alike. If none does, the ranks that this
    process has started end when it does.
    """
    global _has_failed
    _has_failed = False
    try:
        yield
    except BaseException as error:
        _has_failed = not _is_normal_exit(error)
        if isinstance(error, Exception):
            say(f"[rank: {number}] {exit_status.in_one_line(error)}")
            _before_failing()
        elif isinstance(error, SystemExit):
            exit_status.note(error)
            if _has_failed:
                say(f"[rank: {number}] SystemExit: {error.code}")
        raise


def _is_normal_exit(error: BaseException) -> bool:
    ends = (None, 0, rank_monitor.STOPPED, rank_monitor.INTERRUPTED)
    return isinstance(error, SystemExit) and error.code in ends


def leave(status: int) -> NoReturn:
    """Ends this process and the ranks that it has started, without waiting for others.

    What is not lost: what was printed and logged, temporary files of `multiprocessing`. No other
    handlers of `atexit` run, since the vendor's is among them.

    Args:
        status: The exit status.
    """
    global _is_leaving
    _is_leaving = True
    threading.Thread(target=_leave_later, args=(status,), name="leave", daemon=True).start()
    for tidy in (_before_leaving, _end_started, logging.shutdown, util._run_finalizers):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            tidy()
    _exit_now(status)


def is_leaving() -> bool:
    """Returns whether this process is in `leave`."""
    return _is_leaving


def _leave_later(status: int) -> None:
    time.sleep(_LEAVE_S)
    _exit_now(status)


def _end_started() -> None:
    if _started is not None:
        _started.end(within_s=rank_monitor.GRACE_S)


@contextlib.contextmanager
def joined(processes: Callable[[], Sequence[Process]]) -> Iterator[None]:
    """Ends the processes, all local ranks, together and before this context ends.

    Whoever is in it waits for them, and raises and says so when one has failed; the others are
    killed if they do not end then. A SIGTERM and a Ctrl-C are theirs, too, and the exit status is
    then 143 or 130. A second Ctrl-C ends all at once.

    Args:
        processes: Those that have been started so far.

    Raises:
        SystemExit: They were ended by a SIGTERM or a Ctrl-C.
    """
    ranks = RankMonitor(processes, first_rank=0, is_quiet=True)
    ranks.watch(lambda: None)
    try:
        with (
            _passing_on(signal.SIGTERM, processes) as received,
            _passing_on(signal.SIGINT, processes, at_second=ranks.kill) as interrupts,
        ):
            yield
            if interrupts:
                raise SystemExit(rank_monitor.INTERRUPTED)
    except BaseException as error:
        status = rank_monitor.STOPPED if received else ranks.stopped()
        status = rank_monitor.INTERRUPTED if interrupts else status
        ranks.wait(rank_monitor.GRACE_S if status is None else rank_monitor.STOP_S)
        ranks.kill()
        if status is not None:
            raise SystemExit(status) from error
        raise
    finally:
        ranks.unwatch()


@contextlib.contextmanager
def _passing_on(
    signum: signal.Signals,
    processes: Callable[[], Sequence[Process]],
    at_second: Callable[[], None] | None = None,
) -> Iterator[list[float]]:
    """Sends a signal on to processes, which decide; the list has the times at which it came.

    Args:
        signum: The signal; one that is ignored is not passed on.
        processes: Those that have been started so far.
        at_second: What is done when it comes again.
    """
    received: list[float] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(time.monotonic())
        if at_second is not None and rank_monitor.is_second(received):
            at_second()
            return
        _send(signum, processes())

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signum) == signal.SIG_IGN:
        yield received
        return
    before = signal.signal(signum, pass_on)
    try:
        yield received
    finally:
        signal.signal(signum, before)


def _send(signum: signal.Signals, processes: Sequence[Process]) -> None:
    for process in processes:
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)


def end_now(status: int = 1) -> NoReturn:
    """Ends this process and the ranks that it has started, at once."""
    if _started is not None:
        _started.kill()
    _exit_now(status)


def _exit_now(status: int = 1) -> NoReturn:
    """Ends this process, whatever its main thread waits for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


ENDED = ("Z", "X")
"""The states of a process that has ended, and that nobody has waited for yet."""


class Status(NamedTuple):
    """Fields 3, 22, 52, and the sum of 14 and 15, of /proc/PID/stat."""

    state: str
    started: int
    """When, in ticks since the machine started: another process may get its number."""
    code: int
    ticks: int
    """How long it has computed."""


def status(pid: int) -> Status | None:
    """Returns what a process does; None if there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Status(fields[0], int(fields[19]), int(fields[49]), int(fields[11]) + int(fields[12]))


def host() -> str:
    """Returns the machine, and what counts processes on it: a container counts its own."""
    return f"{os.uname().nodename} {Path('/proc/self/ns/pid').readlink()}"


def describe(pid: int) -> str:
    """Returns a process as others of its machine find it: who counts, its number, when it began."""
    found = status(pid)
    is_there = found is not None and found.state not in ENDED
    return f"{host()} {pid} {found.started if found is not None and is_there else None}"


def has_died(description: str) -> bool:
    """Returns whether a process that `describe` has described, if one of this machine, is no more.

    Args:
        description: Of whatever text; of one that describes none, False.
    """
    who_counts, *process = description.rsplit(" ", 2)
    if who_counts != host() or len(process) != 2 or not process[0].isdecimal():
        return False
    return describe(int(process[0])) != description


_DYING_S = 5.0
"""How long a process that was killed may take: one with much memory gives it back first."""


def end_group(group: int, patience_s: float = 0.0) -> None:
    """Ends all processes of a group, and returns when they are gone.

    A driver that hangs keeps a process in the kernel, whom no signal ends: nobody waits for it for
    longer than some seconds.

    Args:
        group: Its number, that of its leader, which has been waited for.
        patience_s: Seconds to end in by themselves, once asked to; 0 to kill them at once.
    """
    with suppress(ProcessLookupError):  # none is left
        if patience_s:
            os.killpg(group, signal.SIGTERM)
            _wait(group, patience_s)
        os.killpg(group, signal.SIGKILL)
        _wait(group, _DYING_S)


def _wait(group: int, seconds: float) -> None:
    """Waits for the end of the last one, which raises ProcessLookupError, or of the time."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        os.killpg(group, 0)
        time.sleep(0.02)
