"""How the loaders that Lightning is given start their workers, on an HPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

_MAX_NESTED = 3


def start_workers_safely(loader: Any) -> None:
    """Have a loader start its workers without a fork of this process, which holds a card.

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
        # "fork" may be a default that somebody has asked for, and is then fixed.
        if multiprocessing.get_start_method(allow_none=True) in ("spawn", "forkserver"):
            return
        from lightning_gaudi._core import worker_start

        loader.multiprocessing_context = worker_start.WorkerContext()
        worker_start.start_server(_modules(loader))
    elif context.get_start_method() == "fork":
        raise MisconfigurationException(
            f"A DataLoader has num_workers={loader.num_workers} and multiprocessing_context='fork',"
            " but a process that holds a card must not be forked: the driver does not survive it. "
            "Leave multiprocessing_context out: workers then start as fast, from a process without "
            "a card. Or pass 'spawn' or 'forkserver'."
        )


def _modules(loader: Any) -> Iterator[str]:
    """Where what the workers get is defined: those of data sets around data sets, too."""
    things = [getattr(loader, name, None) for name in ("dataset", "collate_fn", "worker_init_fn")]
    for _ in range(_MAX_NESTED):
        things = [thing for thing in things if thing is not None]
        yield from (getattr(thing, "__module__", type(thing).__module__) for thing in things)
        # Of a Subset or a loader of ours, of a partial function, of a bound method.
        names = ("dataset", "collate", "func", "__self__")
        things = [getattr(thing, name, None) for thing in things for name in names]
