"""What a program has started, in a session of its own: ended when the program is."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

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
