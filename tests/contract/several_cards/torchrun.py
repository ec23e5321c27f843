"""Run a module of this folder on several cards, as torchrun starts a user's script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_gaudi._core import vendor
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 600
"""For all ranks together; a card compiles each operation at its first use."""

# What says which rank a process is. The vendor's import sets some of them in this process.
_OF_A_RANK = (
    *("HLS_MODULE_ID", "ID", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)


def need_cards(count: int) -> None:
    """Skip the test that calls this if the server has fewer cards."""
    found = vendor.num_visible_cards()
    if found < count:
        pytest.skip(f"needs {count} cards, this process may use {found}")


def torchrun(module: str, *args: object, num_ranks: int) -> None:
    """Run `module` with `args` on `num_ranks` cards of this server.

    Raises:
        AssertionError: A rank failed or they did not end in time; with what they printed.
    """
    port = free_port()
    run(
        *("-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}"),
        *("--master-addr=127.0.0.1", f"--master-port={port}", "-m", module),
        *args,
    )


def run(*args: object) -> str:
    """Run this Python with `args`, as a user would from a shell that names no rank.

    Returns:
        What it printed.

    Raises:
        AssertionError: It failed or did not end in time; with what it printed.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    command = [sys.executable, *map(str, args)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            output, _ = process.communicate(timeout=60)
            raise AssertionError(f"{command} ran past {TIMEOUT_S} s\n{output}") from None
    assert process.returncode == 0, f"{command} exited with {process.returncode}\n{output}"
    return output
