"""Start ranks that share a process group, and wait for them no longer than told."""

from __future__ import annotations

import atexit
import datetime
import gc
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .forked import fork_python

_ROOT = Path(__file__).parents[2]
_GROUP_TIMEOUT = datetime.timedelta(seconds=60)


def run_ranks(
    worker: Callable[..., None],
    folder: Path,
    *args: Any,
    num_ranks: int = 2,
    timeout: float = 240,
) -> None:
    """Call `worker(rank, *args)` in each of several processes of one `hccl` group.

    They are forked from a process that has imported the worker's module and what torch imports
    at a first collective, and has used no card: 0.1 s a rank, not 5 s.

    Args:
        worker: A function of a module.
        folder: Where the processes meet; not used for another group.
        args: Further arguments, picklable.
        num_ranks: Number of processes.
        timeout: Seconds for all of it.

    Raises:
        AssertionError: A rank failed, or they did not end in time; it says which.
    """
    fork_ranks(_main, folder, num_ranks, folder / "store", worker, args, timeout=timeout)


def fork_ranks(
    main: Callable[..., None],
    folder: Path,
    num_ranks: int,
    *args: Any,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Call `main(rank, num_ranks, *args)` in each of several processes.

    Args:
        main: A function of a module.
        folder: An own folder.
        num_ranks: Number of processes.
        args: Further arguments, picklable; what they are of is imported once for all.
        timeout: Seconds for all of it.
        env: Changes to the environment, there when the device is loaded.

    Raises:
        AssertionError: A rank failed, or they did not end in time; it says which.
    """
    # To say which ranks were late takes a moment more.
    call_forked(_fork_ranks, folder, main, num_ranks, args, timeout, timeout=timeout + 30, env=env)


def call_forked(
    function: Callable[..., None],
    folder: Path,
    *args: Any,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Call `function(folder, *args)` in a process that may fork ranks: it has used no card.

    Args:
        function: A function of a module.
        folder: An own folder.
        args: Further arguments, picklable.
        timeout: Seconds for all of it.
        env: Changes to the environment, there when the device is loaded.

    Raises:
        AssertionError: It failed, or it did not end in time.
    """
    task = folder / "task"
    task.write_bytes(pickle.dumps((function, folder, args)))
    fork_python(
        "from tests.helpers import ranks; ranks.call_task()",
        str(task),
        env={"LIGHTNING_GAUDI_SIMULATE": os.environ["LIGHTNING_GAUDI_SIMULATE"], **(env or {})},
        cwd=_ROOT,
        timeout=timeout,
    )


def call_task() -> None:
    """The other half of `call_forked`; `sys.argv` names what to do."""
    function, folder, args = pickle.loads(Path(sys.argv[1]).read_bytes())
    function(folder, *args)


def _fork_ranks(
    folder: Path,
    main: Callable[..., None],
    num_ranks: int,
    args: tuple[Any, ...],
    timeout: float,
) -> None:
    gc.freeze()
    context = torch.multiprocessing.start_processes(
        main, (num_ranks, *args), num_ranks, join=False, start_method="fork"
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
    except BaseException:
        # Forks run these since Python 3.13, and some wait there for all ranks.
        atexit._clear()
        raise
    dist.barrier()
    dist.destroy_process_group()  # not after an error: the others would not come
