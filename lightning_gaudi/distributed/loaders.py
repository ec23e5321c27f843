"""How the loaders that Lightning is given start their workers, on an HPU."""

from __future__ import annotations

import multiprocessing
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

_SAFE = ("spawn", "forkserver")


def start_workers_safely(loader: Any) -> None:
    """Makes a loader start its workers without a fork of this process, which holds a card.

    Nothing is changed where it has none, or the user has chosen "spawn" or "forkserver".

    Args:
        loader: A DataLoader, or another that has its `num_workers` and `multiprocessing_context`.

    Raises:
        MisconfigurationException: The user wants workers to be forked.
    """
    if not getattr(loader, "num_workers", 0) or not hasattr(loader, "multiprocessing_context"):
        return
    context = loader.multiprocessing_context
    if context is None:
        # Python's default may be what somebody has asked for, and is then fixed; not chosen.
        chosen = set(_SAFE) - {multiprocessing.get_all_start_methods()[0]}
        if multiprocessing.get_start_method(allow_none=True) in chosen:
            return
        from lightning_gaudi._core.workers import start as worker_start

        loader.multiprocessing_context = worker_start.WorkerContext()
        names = ("dataset", "collate_fn", "worker_init_fn")
        worker_start.start_server(getattr(loader, name, None) for name in names)
    elif context.get_start_method() == "fork":
        raise MisconfigurationException(
            f"A DataLoader has num_workers={loader.num_workers} and multiprocessing_context='fork',"
            " but a process that holds a card must not be forked: the driver does not survive it. "
            "Leave multiprocessing_context out: workers then start about as fast, from a process "
            "without a card. Or pass 'spawn' or 'forkserver'."
        )
