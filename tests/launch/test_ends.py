"""Ranks that end as a fork of `multiprocessing` does, which runs no `atexit`."""

from __future__ import annotations

import time
from pathlib import Path

import lightning.pytorch as pl
import torch.distributed as dist

from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_checkpoint_cases import model_of, part_of, trainer_of

LATE_S = 3.0


def _ends_late(rank: int, late: int) -> str:
    trainer: pl.Trainer = trainer_of("ddp", 2, max_epochs=1)
    trainer.fit(model_of("ddp"), part_of("ddp", rank, 2))
    if rank == late:
        time.sleep(LATE_S)  # the other one's function has returned
        store = dist.distributed_c10d._get_default_store()
        store.set("late", "")
        return bytes(store.get("late")).decode() + "ended late"
    return "ended"


def test_rank_0_keeps_the_store_for_those_who_still_need_it(tmp_path: Path) -> None:
    assert run_trainers(_ends_late, tmp_path, 1) == ["ended", "ended late"]


def test_a_rank_that_waits_at_its_end_is_not_blamed(tmp_path: Path) -> None:
    assert run_trainers(_ends_late, tmp_path, 0) == ["ended late", "ended"]
