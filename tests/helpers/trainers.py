"""Ranks that run Trainers, started from outside as `torchrun` would, and what they found."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tests.helpers.ports import free_port

from .ranks import fork_ranks


def run_trainers(
    worker: Callable[..., Any],
    folder: Path,
    *args: Any,
    num_ranks: int = 2,
    timeout: float = 240,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Call `worker(rank, *args)` in each of several processes with a launcher's environment.

    The first Trainer of a worker connects the ranks, and further ones go on with that. The ranks
    are forked from a process that has imported the worker's module, and has used no card.

    Args:
        worker: A function of a module.
        folder: For what the ranks found.
        args: Further arguments, picklable.
        num_ranks: Number of processes.
        timeout: Seconds for all of it.
        env: What must be set before torch is imported, such as PT_HPU_LAZY_MODE.

    Returns:
        What `worker` returned, by rank; tensors are on the CPU.

    Raises:
        AssertionError: A rank failed, or they did not end in time.
    """
    port = free_port()
    fork_ranks(_main, folder, num_ranks, port, folder, worker, args, timeout=timeout, env=env)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(num_ranks)]


SPAWNING = pytest.mark.parametrize(
    "is_forked",
    [pytest.param(True, id="forked"), pytest.param(False, id="spawned", marks=pytest.mark.slow)],
)
"""Of a test of what Lightning spawns: in the fast one, `fork_what_is_spawned` is called."""


def fork_what_is_spawned() -> None:
    """From now on Lightning's "spawn" forks in this process, which has used no card.

    Ranks take 0.1 s and not 5 s; what they are given is not pickled.
    """
    start, context = mp.start_processes, mp.get_context("fork")

    def start_forks(*args: Any, **kwargs: Any) -> Any:
        return start(*args, **{**kwargs, "start_method": "fork"})

    mp.start_processes = start_forks
    mp.get_context = lambda method=None: context


def _main(
    rank: int,
    num_ranks: int,
    port: int,
    folder: Path,
    worker: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
    }
    # What the vendor's package does when a rank imports it; here it has been imported before.
    hccl = importlib.import_module("habana_frameworks.torch.distributed.hccl")
    hccl.initialize_distributed_hpu()
    torch.set_num_threads(1)
    torch.save(worker(rank, *args), folder / f"rank{rank}.pt")
