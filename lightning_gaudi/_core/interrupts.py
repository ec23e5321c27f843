"""Ctrl-C, seen by a thread of its own.

Python's handler does not run while training waits in native code, as in a collective for a rank
that may never come.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from .rank_monitor import is_second


class InterruptWatch:
    """Calls functions when Ctrl-C comes, and when it comes again.

    The main thread makes and closes it.

    Args:
        at_first: Called in a thread.
        at_second: The same.
    """

    def __init__(self, at_first: Callable[[], None], at_second: Callable[[], None]) -> None:
        self._at_first, self._at_second = at_first, at_second
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write_end, False)
        self._before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="interrupts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watches no longer."""
        signal.set_wakeup_fd(self._before)
        os.close(self._write_end)
        if os.getpid() == self._pid:
            self._thread.join()
        os.close(self._read_end)

    def _run(self) -> None:
        times: list[float] = []
        while signals := os.read(self._read_end, 64):
            if self._before != -1:  # who watched before goes on
                with contextlib.suppress(OSError):
                    os.write(self._before, signals)
            if signal.SIGINT not in signals:
                continue
            times.append(time.monotonic())
            if len(times) == 1:
                self._at_first()
            elif is_second(times):
                self._at_second()
