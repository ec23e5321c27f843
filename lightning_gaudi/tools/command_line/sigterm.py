"""Has a command end what it has started when a signal ends it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind this process as Ctrl-C does, so that nothing it has started is left."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
