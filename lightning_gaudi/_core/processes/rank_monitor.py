"""Watches the ranks that this process has started, and reports how they ended."""

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
"""How long the other ranks may run on when one has failed."""

STOPPED = 128 + signal.SIGTERM
"""The exit status of ranks that have ended together after SIGTERM, as a shell reports it."""

INTERRUPTED = 128 + signal.SIGINT
"""The same for Ctrl-C."""

STOP_S = 30.0
"""How long the other ranks may run on after SIGTERM or Ctrl-C, since they save their state."""

POLL_S = 0.25
"""How often to look."""

_IN_ORDER = (STOPPED, INTERRUPTED)

SAME_S = 1.0
"""Within this time one Ctrl-C may arrive twice: from the terminal, and from the parent."""

_PATIENCE_S = 30.0
_MAX_SAID = 20_000


class RankMonitor:
    """Watches the other ranks of this node, and ends them."""

    def __init__(
        self, processes: Callable[[], Sequence[Process]], first_rank: int, *, is_quiet: bool = False
    ) -> None:
        """Creates a monitor; `watch` starts it.

        Args:
            processes: Those that have been started so far.
            first_rank: The local rank of the first of them.
            is_quiet: Whether somebody else reports which of them failed.
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
        # The others get their time to report before they are killed.
        if self._is_over.wait(1.0):
            return
        self.report()
        if not self._is_over.wait(GRACE_S - 1.0):
            self.kill()
            on_failure()

    def unwatch(self) -> None:
        """Stops watching."""
        self._is_over.set()
        if self._watch is not None:
            self._watch.join()

    def wait(self, within_s: float | None = None) -> None:
        """Waits for the ranks to end.

        Args:
            within_s: Seconds after which it returns, whether they have ended or not.
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
        """Kills the ranks that still run."""
        for process in self._processes():
            if _status(process) is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def report(self) -> None:
        """Reports each rank that failed, once."""
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
    """Returns the exit status of a process, or minus its signal; None while it runs."""
    if process.pid is None:
        return None
    try:
        # WNOWAIT leaves it to be waited for: torch's launcher waits, too, and would get an error.
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Somebody has waited for it. If that was the program itself, nobody knows the status.
        status = process.returncode if hasattr(process, "returncode") else process.exitcode
        return 0 if status is None else int(status)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def is_second(times: Sequence[float]) -> bool:
    """Returns whether the last of a signal's times is a second one and not an echo of the first."""
    return len(times) > 1 and times[-1] - times[0] > SAME_S


def killed_by(number: int) -> str:
    """Returns words for a process that a signal has ended, with the likely reason if known."""
    try:
        said = f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"
    if number != signal.SIGKILL:
        return said
    from .memory_limit import find_memory_limit  # imported only when a rank was killed

    limit = find_memory_limit()
    if limit is not None and limit.num_killed:
        said += (
            f" (the memory limit of this container, {limit.num_bytes / 2**30:.1f} GiB, has ended "
            f"{limit.num_killed} of its processes so far: raise it, or use fewer workers)"
        )
    return said


def say(message: str) -> None:
    """Writes a message to stderr, whatever the level of logging.

    Its text may come from another process, so it is made printable.
    """
    end = "" if "\n" in message else "."
    text = printable(message.rstrip(".\n"), max_chars=_MAX_SAID, lines=True)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"lightning-gaudi: {text}{end}\n")
        sys.stderr.flush()
