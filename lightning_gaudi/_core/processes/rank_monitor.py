"""Processes that a process of ours has started as ranks, and how each of them ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lightning_gaudi.untrusted import printable

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from subprocess import Popen

    Process = Popen[Any] | BaseProcess

GRACE_S = 5.0
"""How long the other ranks may still run when one has failed."""

STOPPED = 128 + signal.SIGTERM
"""The exit status of a rank that SIGTERM has ended, as a shell has it; all ranks agree on that."""

INTERRUPTED = 128 + signal.SIGINT
"""The same for Ctrl-C."""

STOP_S = 30.0
"""How long the other ranks may still run when one has ended so."""

POLL_S = 0.25
"""How often to look."""

_IN_ORDER = (STOPPED, INTERRUPTED)

SAME_S = 1.0
"""Within this time a Ctrl-C may come twice: from the terminal, and from who has started a rank."""

_PATIENCE_S = 30.0
_MAX_SAID = 20_000


class RankMonitor:
    """Watches other ranks of this node, and ends them."""

    def __init__(
        self, processes: Callable[[], Sequence[Process]], first_rank: int, *, is_quiet: bool = False
    ) -> None:
        """Takes note of the ranks.

        Args:
            processes: Those that have been started so far.
            first_rank: The local rank of the first of them.
            is_quiet: Somebody else says which of them failed.
        """
        self._processes = processes
        self._first_rank = first_rank
        self.is_quiet = is_quiet
        self._is_over = threading.Event()
        self._watch: threading.Thread | None = None
        self._lock = threading.Lock()
        self._reported: set[int] = set()

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Calls `on_failure` in a thread when a rank has failed and all had their time to end."""
        self._watch = threading.Thread(
            target=self._run, args=(on_failure,), name="rank-watch", daemon=True
        )
        self._watch.start()

    def _run(self, on_failure: Callable[[], None]) -> None:
        while not self._failed():
            if self._is_over.wait(POLL_S):
                return
        # A Ctrl-C at the terminal reaches all ranks, and this process says so itself.
        if self._is_over.wait(1.0):
            return
        self.report()
        if not self._is_over.wait(GRACE_S - 1.0):
            self.kill()
            on_failure()

    def unwatch(self) -> None:
        """Watches no longer."""
        self._is_over.set()
        if self._watch is not None:
            self._watch.join()

    def wait(self, within_s: float | None = None) -> None:
        """Waits for the ranks to end.

        Args:
            within_s: Seconds, after which they are left to others.
        """
        start, has_said = time.monotonic(), False
        while running := [rank for rank, status in self._statuses().items() if status is None]:
            waited = time.monotonic() - start
            if within_s is not None and waited > within_s:
                return
            if waited > _PATIENCE_S and not has_said:
                has_said = True
                names = ", ".join(map(str, running))
                say(f"this process is done and waits for local rank {names} to end")
            time.sleep(POLL_S / 5)

    def kill(self) -> None:
        """Ends those that still run, at once."""
        for process in self._processes():
            if _status(process) is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def report(self) -> None:
        """Says which ranks failed, once."""
        with self._lock:
            failed = {} if self.is_quiet else self._failed()
            new = failed.keys() - self._reported
            self._reported |= new
        for rank in sorted(new):
            pid, status = self._processes()[rank - self._first_rank].pid, failed[rank]
            how = f"failed with exit status {status}" if status > 0 else killed_by(-status)
            say(f"local rank {rank} (process {pid}) {how}; the other ranks end too")

    def stopped(self) -> int | None:
        """Returns the exit status of a rank that SIGTERM or Ctrl-C has ended in good order."""
        found = {*self._statuses().values()} & {STOPPED, INTERRUPTED}
        return max(found, default=None)  # type: ignore[type-var]

    def _failed(self) -> dict[int, int]:
        statuses = self._statuses().items()
        return {rank: status for rank, status in statuses if status and status not in _IN_ORDER}

    def _statuses(self) -> dict[int, int | None]:
        ranks = enumerate(self._processes(), self._first_rank)
        return {rank: _status(process) for rank, process in ranks}


def _status(process: Process) -> int | None:
    """Returns how it ended (the exit status, or minus the signal), or None while it runs.

    It stays for others to wait for: torch does, and would be told of no such child.
    """
    if process.pid is None:
        return None
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Somebody has waited for it; the program itself may have, and then nobody knows.
        status = process.returncode if hasattr(process, "returncode") else process.exitcode
        return 0 if status is None else int(status)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def is_second(times: Sequence[float]) -> bool:
    """Tells if the last of a signal's times, by `time.monotonic`, is a further one and no echo."""
    return len(times) > 1 and times[-1] - times[0] > SAME_S


def killed_by(number: int) -> str:
    """Says that a signal, by its name if it has one, has ended a process, and perhaps why."""
    try:
        said = f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"
    if number != signal.SIGKILL:
        return said
    from .memory_limit import find_memory_limit  # which a run that nobody kills does without

    limit = find_memory_limit()
    if limit is not None and limit.num_killed:
        said += (
            f" (the memory limit of this container, {limit.num_bytes / 2**30:.1f} GiB, has ended "
            f"{limit.num_killed} of its processes so far: raise it, or use fewer workers)"
        )
    return said


def say(message: str) -> None:
    """Tells the user, whatever the level of logging; some of it may come from another process."""
    end = "" if "\n" in message else "."
    text = printable(message.rstrip(".\n"), max_chars=_MAX_SAID, lines=True)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"lightning-gaudi: {text}{end}\n")
        sys.stderr.flush()
