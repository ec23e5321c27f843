"""Lets the ranks of one node start and end together.

The process that started the others, which is local rank 0 or waits for all of them, ends last. If a
rank fails, the others have a moment to report and are then ended. If the starting process dies,
they notice. So no process that holds a card is left behind.
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
"""The variable with the process that has started this one as another rank of its node."""

_LEAVE_S = rank_monitor.GRACE_S + 3.0
"""How long `leave` may take."""


@contextlib.contextmanager
def as_parent() -> Iterator[None]:
    """Lets processes that are started in this block watch this process."""
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(PARENT, None)


def watch_parent(parent: int | None = None) -> None:
    """Ends this process soon after the rank that has started it has died.

    Args:
        parent: The process to watch; by default what the environment says, where it does.
    """
    if parent is None:
        parent = read_integer(PARENT, 0)
        os.environ.pop(PARENT, None)
        # A rank's own child processes inherit the variable, but were not started as ranks.
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
    # An orphan gets another parent, so this needs no signal, and cannot be fooled by a reused
    # number.
    while os.getppid() == parent:
        time.sleep(rank_monitor.POLL_S)
    # This rank may be about to report what went wrong.
    time.sleep(rank_monitor.GRACE_S / 2)
    say(f"local rank {os.environ.get('LOCAL_RANK')} ends because the process that started it died")
    _exit_now()


_started: _Started | None = None


def start(processes: Sequence[Process]) -> None:
    """Ties the processes of local ranks 1 and up to the end of this one, local rank 0."""
    global _started
    _started = _Started(RankMonitor(lambda: processes, first_rank=1), processes)


def interrupt_started() -> None:
    """Ends the processes that this one has started as Ctrl-C would."""
    if _started is not None:
        _started.interrupt()


class _Started:
    """The ranks that this process has started by running its script again."""

    def __init__(self, ranks: RankMonitor, processes: Sequence[Process]) -> None:
        self._ranks = ranks
        self._processes = processes
        self._pid = os.getpid()
        # From a thread, since the main thread may wait in a collective for the rank that failed.
        ranks.watch(_exit_now)
        call_last(self.end)

    def kill(self) -> None:
        """Kills the ranks."""
        self._ranks.kill()

    def end(self, *, within_s: float | None = None) -> None:
        """Waits until the ranks have ended, and kills those that have not.

        Args:
            within_s: How long they may take; by default as long as they want, unless an error ends
                this process.
        """
        if os.getpid() != self._pid:
            # A fork of this process runs the same exit handlers, and must not end the ranks.
            return
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
        """Interrupts the ranks as Ctrl-C would, without a report on how they ended."""
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
    """Sets a function that is called when a rank's task ends with an error."""
    global _before_failing
    _before_failing = function


def before_leaving(function: Callable[[], None]) -> None:
    """Sets a function that is called when this rank ends by `leave`, to tell the other ranks."""
    global _before_leaving
    _before_leaving = function


@contextlib.contextmanager
def rank(number: int) -> Iterator[None]:
    """Names the rank of an error that leaves the block.

    A caller may still catch the error, on all ranks alike. If none does, the ranks that this
    process has started end with it.
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
    """Ends this process and the ranks that it has started, without waiting for other ranks.

    Printed and logged text is written, and temporary files of `multiprocessing` are removed. Other
    `atexit` handlers do not run, since the vendor's is among them and waits for all ranks.

    Args:
        status: The exit status.
    """
    global _is_leaving
    _is_leaving = True
    # Whatever of the following hangs, the process ends.
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
    """Ends all local ranks together, before this block ends.

    The code in the block waits for them, and raises if one has failed; the others are killed if
    they do not end then. SIGTERM and Ctrl-C are passed on to them, and the exit status is then 143
    or 130. A second Ctrl-C ends all at once.

    Args:
        processes: Those that have been started so far.

    Raises:
        SystemExit: They were ended by a SIGTERM or a Ctrl-C.
    """
    # `torch.multiprocessing` reports which of them failed.
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
    """Passes a signal on to processes, and yields the list of times at which it came.

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
    # The process that waits must not end first, or the ranks would be orphans that still hold
    # cards.
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
            # `os._exit` flushes nothing.
            stream.flush()
    os._exit(status)


ENDED = ("Z", "X")
"""The states of a process that has ended but was not waited for (zombie, dead)."""


class Status(NamedTuple):
    """Fields 3, 22 and 52, and the sum of 14 and 15, of /proc/PID/stat."""

    state: str
    started: int
    """When it was started, in ticks since boot; a later process may get the same number."""
    code: int
    ticks: int
    """Its CPU time, in ticks."""


def status(pid: int) -> Status | None:
    """Returns the status of a process; None if there is no process of that number."""
    try:
        # The name in parentheses may hold spaces and parentheses itself, so what follows the last
        # one counts.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Status(fields[0], int(fields[19]), int(fields[49]), int(fields[11]) + int(fields[12]))


def host() -> str:
    """Returns the machine and its PID namespace, since a container numbers its own processes."""
    return f"{os.uname().nodename} {Path('/proc/self/ns/pid').readlink()}"


def describe(pid: int) -> str:
    """Returns a text that identifies a process: machine and namespace, number, time of start."""
    found = status(pid)
    is_there = found is not None and found.state not in ENDED
    return f"{host()} {pid} {found.started if found is not None and is_there else None}"


def has_died(description: str) -> bool:
    """Returns whether a process of this machine that `describe` has described has ended.

    Args:
        description: Any text; the result is False if it describes no process of this machine.
    """
    who_counts, *process = description.rsplit(" ", 2)
    if who_counts != host() or len(process) != 2 or not process[0].isdecimal():
        return False
    return describe(int(process[0])) != description


_DYING_S = 5.0
"""How long a killed process may take to end, since it has to give back its memory."""


def end_group(group: int, patience_s: float = 0.0) -> None:
    """Ends all processes of a group, and returns when they are gone, or after some seconds.

    A hanging driver may keep a process in the kernel, where no signal ends it.

    Args:
        group: Its number, that of its leader, which has been waited for.
        patience_s: Seconds that they have to end after SIGTERM; 0 to kill them at once.
    """
    with suppress(ProcessLookupError):  # none is left
        if patience_s:
            os.killpg(group, signal.SIGTERM)
            _wait(group, patience_s)
        os.killpg(group, signal.SIGKILL)
        _wait(group, _DYING_S)


def _wait(group: int, seconds: float) -> None:
    """Waits some seconds; raises ProcessLookupError once the last process has ended."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        os.killpg(group, 0)
        time.sleep(0.02)
