"""Ranks that run Trainers, started from outside as `torchrun` would, and what they found."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

_START = "forkserver"
"""Ranks are forked from a process that has imported all this and used no card: 0.1 s, not 5 s."""


def run_trainers(
    worker: Callable[..., Any],
    folder: Path,
    *args: Any,
    num_ranks: int = 2,
    timeout: float = 240,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Call `worker(rank, *args)` in each of several processes with a launcher's environment.

    The first Trainer of a worker connects the ranks, and further ones go on with that.

    Args:
        worker: A function of a module.
        folder: For what the ranks found.
        args: Further arguments, picklable.
        num_ranks: Number of processes.
        timeout: Seconds for all of it.
        env: What must be set before torch is imported, such as PT_HPU_LAZY_MODE; takes 5 s more.

    Returns:
        What `worker` returned, by rank; tensors are on the CPU.

    Raises:
        AssertionError: A rank failed, or they did not end in time.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    method = _START if env is None else "spawn"
    if env is None:
        multiprocessing.get_context(_START).set_forkserver_preload([__name__, worker.__module__])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        context = torch.multiprocessing.start_processes(
            _main,
            (num_ranks, port, folder, worker, args),
            num_ranks,
            join=False,
            start_method=method,
        )
    deadline = time.monotonic() + timeout
    try:
        while not context.join(timeout=1):  # raises with the rank and its traceback
            if time.monotonic() > deadline:
                running = [i for i, process in enumerate(context.processes) if process.is_alive()]
                raise AssertionError(f"Ranks {running} still run after {timeout} s.")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(num_ranks)]


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
    if dist.is_initialized():
        # Rank 0 holds the store, which others may still need to connect a last group.
        dist.barrier()
