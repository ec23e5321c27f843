"""What saving and resuming ask of the store, and what a checkpoint keeps of 8 to 4,096 ranks.

A part of `growth_ranks`. Ranks speak over gloo as they save, and each keeps where its loader is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.counted_store import CountedStore
from benchmarks.harness.curves import curve
from benchmarks.harness.rows import Row
from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.data.resumable import ResumableLoader

CONNECTED_SIZES = (8, 64, 512)
"""Gloo has something for each two ranks, of which one process would have 16 million with 4,096."""
KEPT_SIZES = (8, 64, 512, 4096)
LINEAR = 1.1
_TIMEOUT = timedelta(minutes=10)


class Ranks:
    """So many ranks, each a thread with a group of gloo of its own, as a large job makes it.

    Args:
        num_ranks: how many.
        together: calls a function for each rank, in a thread of its own.
    """

    def __init__(self, num_ranks: int, together: Callable[[int, Callable[[int], object]], None]):
        self.store = CountedStore()
        self._num_ranks, self._together = num_ranks, together
        self._groups: list[dist.ProcessGroupGloo | None] = [None] * num_ranks
        # As `_core.collectives` has it for more than 32 ranks.
        with mock.patch.dict(os.environ, TORCH_GLOO_LAZY_INIT="1"):
            together(num_ranks, self._make)

    def _make(self, rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [
            dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)
        ]
        options._threads, options._timeout = 1, _TIMEOUT
        self._groups[rank] = dist.ProcessGroupGloo(self.store, rank, self._num_ranks, options)

    def save(self) -> int:
        """Has all ranks speak as in a save or a resume; returns the requests of the store.

        Objects of all ranks are sent in a ring, those of rank 0 along a tree, and plans of shards
        go to rank 0 and back.
        """
        before = self.store.num_requests
        self._together(self._num_ranks, self._speak)
        return self.store.num_requests - before

    def _speak(self, rank: int) -> None:
        group, num_ranks = self._groups[rank], self._num_ranks
        assert group is not None
        value = torch.tensor([rank])
        # The neighbours of a ring alone: around it, each of 512 ranks would send 1,022 times.
        sending = group.send([value], (rank + 1) % num_ranks, 0)
        group.recv([torch.empty_like(value)], (rank - 1) % num_ranks, 0).wait()
        sending.wait()
        group.broadcast([value.clone()], dist.BroadcastOptions()).wait()
        all_values = [[torch.empty_like(value) for _ in range(num_ranks)]] if rank == 0 else []
        group.gather(all_values, [value], dist.GatherOptions()).wait()
        group.scatter([value], all_values, dist.ScatterOptions()).wait()


class Kept:
    """A checkpoint of so many ranks, without a model.

    Args:
        num_ranks: each of which has one loader, shuffled, without workers.
    """

    def __init__(self, num_ranks: int) -> None:
        states = []
        for rank in range(num_ranks):
            torch.manual_seed(rank)
            loader = DataLoader(range(1000), 8, shuffle=True)
            resumable = ResumableLoader(loader, rank, lambda own: [own])
            next(resumable.get_iterator())
            states += resumable.state_dict()["ranks"]
        io, checkpoint = HPUCheckpointIO(), {"state_dict": {}, "loader": {"ranks": states}}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "some.ckpt"
            self.save_s = _cpu_s(partial(io.save_checkpoint, checkpoint, path))
            self.load_s = _cpu_s(partial(io.load_checkpoint, path))
            self.num_bytes = path.stat().st_size


def _cpu_s(do: Callable[[], object]) -> float:
    begin = process_time()
    do()
    return process_time() - begin


def measure(
    together: Callable[[int, Callable[[int], object]], None], *, is_quick: bool
) -> list[Row]:
    """Save twice with each number of ranks; save and load what is kept of each."""
    first, again = {}, {}
    for size in CONNECTED_SIZES[: 2 if is_quick else None]:
        ranks = Ranks(size, together)
        first[size], again[size] = ranks.save(), ranks.save()
    kept = {size: Kept(size) for size in KEPT_SIZES[: 3 if is_quick else None]}
    return [
        curve("requests as ranks first save or resume", first, "", LINEAR),
        Row(
            "requests of each later save",
            max(again.values()),
            "requests",
            limit=0,
            detail=f"of {max(again):,} ranks",
        ),
        curve("bytes that a checkpoint keeps of the ranks", _of(kept, "num_bytes"), "B", LINEAR),
        curve("CPU time of saving these", _of(kept, "save_s"), limit=LINEAR),
        curve("CPU time of loading these", _of(kept, "load_s"), limit=LINEAR),
    ]


def _of(kept: dict[int, Kept], name: str) -> dict[int, float]:
    return {size: getattr(each, name) for size, each in kept.items()}
