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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from subprocess import Popen

    Process = Popen[Any] | BaseProcess

PARENT = "_LIGHTNING_GAUDI_PARENT"
"""The process that has started this one as another rank of its node."""

GRACE_S = 5.0
"""How long the other ranks may still run when one has failed."""

_POLL_S = 0.25
_PATIENCE_S = 30.0


def watch_parent(parent: int | None = None) -> None:
    """End this process soon after the one that has started it, if that is a rank of ours.

    Args:
        parent: The process to watch; by default what the environment says, where it does.
    """
    if parent is None:
        parent = int(os.environ.pop(PARENT, 0))
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
        time.sleep(_POLL_S)
    # This rank may be about to say what went wrong.
    time.sleep(GRACE_S / 2)
    _say(f"local rank {os.environ.get('LOCAL_RANK')} ends because the process that started it died")
    _exit_now()


@contextlib.contextmanager
def as_parent() -> Iterator[None]:
    """Have the processes that are started in this context watch this one."""
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(PARENT, None)


class Ranks:
    """The processes that this one has started as the ranks of its node."""

    def __init__(
        self, processes: Callable[[], Sequence[Process]], first_rank: int, *, is_told: bool
    ) -> None:
        """Take note of the ranks.

        Args:
            processes: Those that have been started so far.
            first_rank: The local rank of the first of them.
            is_told: Whether somebody else says which of them failed.
        """
        self._processes = processes
        self._first_rank = first_rank
        self._is_told = is_told
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._reported: set[int] = set()
        self._watch: threading.Thread | None = None

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Call `on_failure` in a thread when a rank has failed and all had their time to end."""
        self._watch = threading.Thread(
            target=self._run, args=(on_failure,), name="rank-watch", daemon=True
        )
        self._watch.start()

    def _run(self, on_failure: Callable[[], None]) -> None:
        while not self._failed():
            if self._is_over.wait(_POLL_S):
                return
        # A Ctrl-C at the terminal reaches all ranks, and this process says so itself.
        if self._is_over.wait(1.0):
            return
        self._report()
        if not self._is_over.wait(GRACE_S - 1.0):
            self.kill()
            on_failure()

    def end(self, within_s: float | None = None) -> None:
        """Wait for the ranks to end, no longer than told, and kill those that did not.

        Args:
            within_s: Seconds; without a limit a rank that fails still ends all.
        """
        if within_s is not None:
            self._is_over.set()
        start, is_told = time.monotonic(), False
        while running := self._running():
            waited = time.monotonic() - start
            if within_s is not None and waited > within_s:
                break
            if waited > _PATIENCE_S and not is_told:
                is_told = True
                names = ", ".join(map(str, running))
                _say(f"this process is done and waits for local rank {names} to end")
            time.sleep(_POLL_S / 5)
        self._is_over.set()
        self._report()
        self.kill()

    def kill(self) -> None:
        """End those that still run, at once."""
        for process in self._processes():
            if _status(process) is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Watch no longer."""
        self._is_over.set()
        if self._watch is not None:
            self._watch.join()

    def _running(self) -> list[int]:
        return [rank for rank, status in self._statuses().items() if status is None]

    def _failed(self) -> dict[int, int]:
        return {rank: status for rank, status in self._statuses().items() if status}

    def _statuses(self) -> dict[int, int | None]:
        return {
            rank: _status(process)
            for rank, process in enumerate(self._processes(), self._first_rank)
        }

    def _report(self) -> None:
        """Say which ranks failed, once."""
        with self._lock:
            failed = {} if self._is_told else self._failed()
            new = failed.keys() - self._reported
            self._reported |= new
        for rank in sorted(new):
            pid, status = self._processes()[rank - self._first_rank].pid, failed[rank]
            how = f"failed with exit status {status}" if status > 0 else _killed_by(-status)
            _say(f"local rank {rank} (process {pid}) {how}; the other ranks end too")


def _status(process: Process) -> int | None:
    """How it ended (the exit status, or minus the signal), or None while it runs.

    It stays for others to wait for: torch does, and would be told of no such child.
    """
    if process.pid is None:
        return None
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        status = process.returncode if hasattr(process, "returncode") else process.exitcode
        return None if status is None else int(status)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _killed_by(number: int) -> str:
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"


class _Started:
    """What this process has started by running its script again, until it ends."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pid = os.getpid()
        self._has_failed = False
        atexit.register(self._at_exit)

    def fail(self) -> None:
        """Remember that this process has failed; what it has started ends when it does."""
        self._has_failed = True
        # Before what was registered since, such as leaving the process group, which may not return
        # while others wait in a collective.
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)

    def succeed(self) -> None:
        self._has_failed = False

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of it
        # Set where the interpreter has shown an exception that nobody caught.
        has_failed = self._has_failed or hasattr(sys, "last_value")
        try:
            self._ranks.end(GRACE_S if has_failed else None)
        except KeyboardInterrupt:
            self._ranks.kill()
            raise


_started: _Started | None = None


def start(processes: Sequence[Process]) -> None:
    """Have the processes, the local ranks from 1 on, end with this one, which is local rank 0."""
    global _started
    ranks = Ranks(lambda: processes, first_rank=1, is_told=False)
    ranks.watch(_exit_now)
    _started = _Started(ranks)


@contextlib.contextmanager
def rank(number: int) -> Iterator[None]:
    """Say of an error which rank it is on, and end the ranks that this process has started.

    They end when the process does: a caller may still catch the error, on all ranks alike.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception):
            text = str(error).strip().split("\n")[0]
            _say(f"[rank: {number}] {type(error).__name__}: {text}")
        if _started is not None and not _is_normal_exit(error):
            _started.fail()
        raise
    if _started is not None:
        _started.succeed()


def _is_normal_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


@contextlib.contextmanager
def joined(processes: Callable[[], Sequence[Process]]) -> Iterator[None]:
    """Have the processes, all local ranks, end together and before this context does.

    Whoever is in it waits for them and raises when one has failed; they are killed if they do not
    end then.

    Args:
        processes: Those that have been started so far.
    """
    ranks = Ranks(processes, first_rank=0, is_told=True)
    ranks.watch(lambda: None)
    try:
        yield
    except BaseException:
        ranks.end(GRACE_S)
        raise
    finally:
        ranks.leave()


def _exit_now() -> None:
    """End this process, whatever its main thread waits for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)


def _say(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"lightning-gaudi: {message.rstrip('.')}.\n")
        sys.stderr.flush()
