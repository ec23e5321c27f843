"""Forks of a program that rehearses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn

import pytest

from lightning_gaudi.tools.plan.forks import Fork, RehearsalError, Teller

PROGRAM = """
from dataclasses import dataclass

import torch

from lightning_gaudi.tools.plan.forks import Fork


@dataclass
class Found:
    mean: float


def find():
    return Found(torch.ones(1 << 22).mean().item())


torch.set_num_threads(4)
find()  # in threads that are not in a fork
print(Fork(lambda teller: teller.end(find)).found())
"""


@pytest.mark.slow
def test_a_fork_computes_without_the_threads_of_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "{'mean': 1.0}\n", done.stderr


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            signal.SIGKILL,
            "the process was killed by SIGKILL. A system does so when it is out of memory",
        ),
        (signal.SIGSEGV, "the process was killed by SIGSEGV$"),
        (signal.SIGRTMIN + 1, f"the process was killed by signal {signal.SIGRTMIN + 1}$"),
    ],
)
def test_a_fork_that_is_killed_is_told(number: int, message: str) -> None:
    def act(teller: Teller) -> NoReturn:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # pytest shows one's traceback
        os.kill(os.getpid(), number)
        os._exit(0)

    with pytest.raises(RehearsalError, match=message):
        Fork(act).found()
