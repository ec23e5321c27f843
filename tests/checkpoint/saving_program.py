"""A fit that saves every two steps and marks it: `python -m tests.checkpoint.saving_program ...`.

Arguments: "file", "asynchronous", "shards" or "zero"; and the folder of the checkpoints.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy

from lightning_gaudi.callbacks import Reliability
from tests.helpers.power_loss import mark
from tests.helpers.tiny import TinyModule, batches

NUM_STEPS = 8

OPTIONS: dict[str, dict[str, Any]] = {
    "file": {},
    "asynchronous": {"callbacks": [Reliability(async_save=True)]},
    "shards": {"devices": 2, "strategy": ModelParallelStrategy(2, 1)},
    "zero": {"devices": 2, "strategy": "deepspeed_stage_2"},
}


class Marking(ModelCheckpoint):
    """Marks when a save begins, and when it has returned."""

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        if trainer.is_global_zero:
            mark(f"begun-{trainer.global_step}")
        super()._save_checkpoint(trainer, filepath)
        if trainer.is_global_zero and not self.is_later:
            mark(f"saved-{trainer.global_step}")

    is_later = False


class Model(TinyModule):
    """In shards where that is asked for."""

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def main(kind: str, folder: str) -> None:
    options = {"devices": 1, **OPTIONS[kind]}
    saving = Marking(folder, every_n_train_steps=2, save_last=True)
    saving.is_later = kind == "asynchronous"
    options["callbacks"] = [*options.get("callbacks", []), saving]
    trainer = pl.Trainer(
        accelerator="hpu",
        max_steps=NUM_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Model(), batches(NUM_STEPS))
    if trainer.is_global_zero:
        mark(f"saved-{NUM_STEPS}")


if __name__ == "__main__":
    main(*sys.argv[1:])
