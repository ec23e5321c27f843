"""A fit that is started again and again, as pods are, until it has come to its end.

    python stored_program.py ROOT FOLDER STRATEGY

It appends each step and its loss to a file in FOLDER, with ROOT as the Trainer's folder or address.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy

from tests.helpers.tiny import QUIET, TinyModule, batches


class Model(TinyModule):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        with Path(sys.argv[2], "losses").open("a") as file:
            file.write(f"{self.trainer.global_step} {float(loss).hex()}\n")
        time.sleep(0.05)
        return loss


if __name__ == "__main__":
    pl.seed_everything(1, verbose=False)
    is_sharded = sys.argv[3] == "fsdp"
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=1,
        strategy=FSDPStrategy(state_dict_type="sharded") if is_sharded else sys.argv[3],
        max_epochs=3,
        default_root_dir=sys.argv[1],
        callbacks=[
            ModelCheckpoint(every_n_train_steps=2, save_top_k=2, monitor="step", mode="max")
        ],
        **QUIET | {"enable_checkpointing": True},
    )
    trainer.fit(Model(), batches(10))
    Path(sys.argv[2], "done").touch()
