"""Reports it when a process that holds a card forks, which the driver does not survive.

`subprocess` is not concerned, because its children run another program and Python starts them by
other means than `os.fork`. Nor is `os.forkpty`: its callers, as a notebook for `!command`, run
another program, too.
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

    Args:
        device: The simulated device's extension.
    """
    # Not `os.register_at_fork`: an error that is raised there is printed and lost.
    os.fork = _reported(os.fork, device)


def _reported(fork: Callable[[], Any], device: ModuleType) -> Callable[[], Any]:
    @functools.wraps(fork)
    def reported() -> Any:
        if device.holds_card():
            report(FORK, "process::fork")
        return fork()

    return reported
