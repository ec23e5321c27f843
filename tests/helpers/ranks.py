"""Spawn ranks that share a process group, and wait for them no longer than told."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_GROUP_TIMEOUT = datetime.timedelta(seconds=60)


def run_ranks(
    worker: Callable[..., None],
    folder: Path,
    *args: Any,
    num_ranks: int = 2,
    timeout: float = 240,
) -> None:
    """Call `worker(rank, *args)` in each of several processes of one `hccl` group.

    Args:
        worker: A function of a module.
        folder: Where the processes meet; not used for another group.
        args: Further arguments, picklable.
        num_ranks: Number of processes.
        timeout: Seconds for all of it.

    Raises:
        AssertionError: A rank failed, or they did not end in time.
    """
    context = torch.multiprocessing.spawn(
        _main, (num_ranks, folder / "store", worker, args), num_ranks, join=False
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


def _main(
    rank: int, num_ranks: int, store: Path, worker: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "hccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=num_ranks,
        timeout=_GROUP_TIMEOUT,
    )
    try:
        worker(rank, *args)
        dist.barrier()
    finally:
        dist.destroy_process_group()
