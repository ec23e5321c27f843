"""Having the ranks of a process group watched; see `reliability.watchdog`."""

from __future__ import annotations

import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from lightning_gaudi._core import collectives, processes
from lightning_gaudi.reliability import stacks, watchdog
from lightning_gaudi.reliability.board import Board
from lightning_gaudi.reliability.settings import ReliabilitySettings
from lightning_gaudi.reliability.verdict import Limits


def watch_ranks(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Begin to watch the ranks of the process group, once for each; all ranks do this.

    Args:
        settings: What the user wants.
        timeout: The process group's; None for torch's.
    """
    group = dist.group.WORLD
    if not settings.watchdog or dist.get_world_size() == 1 or watchdog.knows(group):
        return
    rank = dist.get_rank()
    name = collectives.broadcast_object(uuid.uuid4().hex, 0)
    board = Board(_get_default_store(), name, rank)
    board.write_first(watchdog.FIRST_BEAT)
    others = collectives.gather_objects(stacks.prepare())
    watchdog.start(group, board, rank, others, _limits(settings, timeout))
    processes.before_leaving(watchdog.stop)


def adapt(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Have the watchdog, if there is one, do what a callback asks for; all ranks do this."""
    watchdog.change(_limits(settings, timeout) if settings.watchdog else None)


def _limits(settings: ReliabilitySettings, timeout: timedelta | None) -> Limits:
    timeout = timeout or dist.distributed_c10d.default_pg_timeout
    return watchdog.limits(timeout, settings.watchdog_timeout_s)
