"""Workers for a DataLoader that neither a Trainer nor Fabric is given."""

from __future__ import annotations

from multiprocessing.context import BaseContext

__all__ = ["worker_context"]


def worker_context() -> BaseContext:
    """How a DataLoader's workers start where the process must not fork, since it holds a card.

    `DataLoader(..., num_workers=4, multiprocessing_context=worker_context())`. A Trainer and Fabric
    do that by themselves. It works without a card, too.
    """
    from lightning_gaudi._core.workers.start import WorkerContext

    return WorkerContext()
