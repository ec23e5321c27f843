"""Checkpoints that run code if they are unpickled, given to all that loads one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightning_gaudi.checkpoint.errors import UntrustedCheckpointError
from tests.helpers.malicious import OBJECTS, Canaries, forge_manifest
from tests.helpers.tiny import TinyModule, batches
from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import trainer, zero


def test_nothing_of_a_malicious_checkpoint_runs(
    attack: Callable[[str], dict[str, Any]], measured: Callable[[str], None]
) -> None:
    found = attack("tests.faults.attack")
    assert found["executed"] == 0
    assert found["faults"] == []
    assert found["executed_if_trusted"] > 0
    measured(
        f"Lightning {found['lightning']}, {found['mode']}: {len(found['entries'])} entry points, "
        f"{found['files']} files, {found['attempts']} attempts: 0 executed"
    )


def _resume_poisoned(rank: int, folder: Path) -> str:
    first = trainer(2, max_epochs=1, **zero(2))
    first.fit(TinyModule(), batches(4))
    first.save_checkpoint(folder / "zero.ckpt")
    if rank == 1:
        (file,) = (folder / "zero.ckpt").glob("*/*zero_pp_rank_1_*optim_states.pt")
        evil = OBJECTS["os.system"](Canaries(folder / "ran").path("1"))
        torch.save({**torch.load(file, weights_only=False), "evil": evil}, file)
        forge_manifest(folder / "zero.ckpt")
    torch.distributed.barrier()
    try:
        trainer(2, max_epochs=2, **zero(2)).fit(
            TinyModule(), batches(4), ckpt_path=folder / "zero.ckpt"
        )
    except (UntrustedCheckpointError, ValueError) as error:
        return str(error)
    return "loaded"


def test_ranks_refuse_the_file_of_one_together(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    messages = run_trainers(_resume_poisoned, tmp_path, tmp_path)
    for message in messages:
        assert "zero_pp_rank_1_mp_rank_00_optim_states.pt was not loaded: it holds" in message
    assert Canaries(tmp_path / "ran").num_executed == 0
    measured("a file of rank 1 of 2 is refused by both")
