"""Say it when a process that holds a card forks: the driver does not survive that.

`subprocess` is not concerned: its children run another program, and Python starts them otherwise.
Nor is `os.forkpty`: who calls it, as a notebook does for `!command`, runs another program, too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi.simulator.rules.report import report
from lightning_gaudi.simulator.rules.rows_processes import FORK


def watch(device: ModuleType) -> None:
    """Reports forks of this process from now on.

    Not by `os.register_at_fork`: an error raised there is lost.

    Args:
        device: The simulated device's extension.
    """
    os.fork = _reported(os.fork, device)


def _reported(fork: Callable[[], Any], device: ModuleType) -> Callable[[], Any]:
    @functools.wraps(fork)
    def reported() -> Any:
        if device.holds_card():
            report(FORK, "process::fork")
        return fork()

    return reported
