"""Lets one process be a rank of many on a dry card: the others are taken to do what it does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..._binding import C


class LoneRank(C.LoneRank):  # type: ignore[misc]
    """Stands in the place of gloo, both for tensors of the host and below HCCL."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        """Makes a group; nobody is waited for.

        Args:
            store: Not used.
            rank: The rank of this process.
            size: The number of ranks that the group is taken to have.
            timeout: Not used.
        """
        super().__init__(rank, size)
        self.options = SimpleNamespace()
        """torch sets the name of the group on this object."""


def pretend() -> None:
    """Lets `torch.distributed` connect this process alone, whatever its world size."""
    for module in (dist, distributed_c10d):
        module.ProcessGroupGloo = LoneRank
        module.TCPStore = _LoneStore
    distributed_c10d.rendezvous = _rendezvous


class _LoneStore(dist.HashStore):
    """Stands in the place of a store to which other ranks connect, and takes no port."""

    def __init__(
        self, host: str = "", port: int = 0, *_: Any, timeout: timedelta | None = None, **__: Any
    ) -> None:
        super().__init__()
        self.host, self.port = host, port
        if timeout is not None:
            self.set_timeout(timeout)


def _rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **options: Any
) -> Iterator[tuple[Any, int, int]]:
    rank = int(os.environ.get("RANK", 0)) if rank < 0 else rank
    world_size = int(os.environ.get("WORLD_SIZE", 1)) if world_size < 0 else world_size
    yield dist.HashStore(), rank, world_size
