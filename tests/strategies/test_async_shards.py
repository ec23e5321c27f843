"""Shards that are written while training goes on: by one thread a rank, which speak together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy

from lightning_gaudi.checkpoint.background import BackgroundWriter
from lightning_gaudi.checkpoint.candidates import candidates
from lightning_gaudi.checkpoint.checksum import ChecksumFile
from lightning_gaudi.checkpoint.verify import check_folder
from lightning_gaudi.deepspeed.checkpoint.versions import latest
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_checkpoint_cases import (
    NUM_BATCHES,
    STRATEGIES,
    model_of,
    part_of,
)

ASYNC = {"LIGHTNING_GAUDI_RELIABILITY": "async_save=on"}
SAVED_AT, WRITTEN_AT, NUM_STEPS = 2, 3, 2 * NUM_BATCHES
NAMES = [
    "fsdp2_shards",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("fsdp_shards", "fsdp_offload_shards", "tensor_shards", "zero_1", "zero_3")
    ),
]


class Gate(pl.Callback):
    """Nothing is written before a step begins."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.num_closed = 0
        save = BackgroundWriter.save

        def late(writer: BackgroundWriter, write: Callable[[], None]) -> None:
            def wait_and_write() -> None:
                self.num_closed += not self.event.is_set()
                assert self.event.wait(60)
                write()

            save(writer, wait_and_write)

        BackgroundWriter.save = late  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step >= WRITTEN_AT:
            self.event.set()


def _fit(name: str, path: Path | None = None, *callbacks: pl.Callback) -> list[float]:
    """The losses of a fit that draws dropout."""
    torch.manual_seed(7)
    kind, _, stage = name.partition("_")
    strategy = DeepSpeedStrategy(stage=int(stage)) if kind == "zero" else STRATEGIES[name](2)
    model = model_of(name, 0.3)
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=strategy,
        use_distributed_sampler=False,
        max_epochs=2,
        callbacks=[*callbacks],
        **{**QUIET, "enable_checkpointing": bool(callbacks)},
    )
    trainer.fit(model, part_of(name, trainer.global_rank, 2), ckpt_path=path)
    return [loss.item() for loss in model.losses]


def _save_late_and_resume(rank: int, name: str, folder: Path) -> tuple[list[float], list[float]]:
    gate = Gate()
    keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1)
    losses = _fit(name, None, gate, keep)
    assert gate.num_closed == 1  # the first; the next save has waited for it
    gate.event.set()
    return losses, _fit(name, folder / f"step={SAVED_AT}.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_later_is_what_was_saved(name: str, tmp_path: Path) -> None:
    """A fit that resumes from it has, to the bit, the losses of the one that trained on."""
    saved = tmp_path / "saved"
    found = run_trainers(_save_late_and_resume, tmp_path, name, saved, env=ASYNC)
    for losses, resumed in found:
        assert len(losses) == NUM_STEPS
        assert [x.hex() for x in resumed] == [x.hex() for x in losses[SAVED_AT:]]
    steps = range(SAVED_AT, NUM_STEPS + 1, SAVED_AT)
    assert {each.name for each in saved.iterdir()} == {f"step={step}.ckpt" for step in steps}
    for path in saved.iterdir():
        check_folder(path / latest(path) if name.startswith("zero") else path)


def _fail_on_rank_1(rank: int, name: str, folder: Path) -> tuple[str, int]:
    save, write, num_saves = BackgroundWriter.save, ChecksumFile.write, 0

    def counting(writer: BackgroundWriter, do: Callable[[], None]) -> None:
        nonlocal num_saves
        num_saves += 1
        save(writer, do)

    def failing(file: ChecksumFile, data: Any) -> int:
        if rank == 1 and num_saves == 2:
            raise OSError(28, "No space left on device")
        return write(file, data)

    BackgroundWriter.save = counting  # type: ignore[method-assign]
    ChecksumFile.write = failing  # type: ignore[method-assign]
    keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=1)
    try:
        _fit(name, None, keep)
    except OSError as error:
        return str(error), num_saves
    return "", num_saves


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_error_of_one_rank_ends_all_and_the_old_one_stays(name: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    for message, num_saves in run_trainers(_fail_on_rank_1, tmp_path, name, saved, env=ASYNC):
        assert "No space left on device" in message
        assert num_saves == 2
    assert [each.path.name for each in candidates([saved])] == ["step=1.ckpt"]
    assert {each.name for each in saved.iterdir()} == {"step=1.ckpt"}
