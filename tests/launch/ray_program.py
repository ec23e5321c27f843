"""Ray Train as its documents show it for Lightning, with `"HPU": 1` for each worker.

    python ray_program.py ddp FOLDER no

Each rank appends its losses to a file in FOLDER; if the last word is "yes", rank 1 is killed once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.lightning import (
    RayDDPStrategy,
    RayDeepSpeedStrategy,
    RayFSDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

STRATEGIES = {"ddp": RayDDPStrategy, "fsdp": RayFSDPStrategy, "deepspeed": RayDeepSpeedStrategy}


class Model(pl.LightningModule):
    def __init__(self, folder: Path, is_killed: bool) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
        )
        self.folder, self.is_killed = folder, is_killed

    def training_step(self, batch: Any) -> torch.Tensor:
        rows, sums = batch
        loss = torch.nn.functional.mse_loss(self.net(rows), sums)
        with (self.folder / f"losses{self.global_rank}").open("a") as file:
            file.write(f"{self.global_step} {float(loss).hex()}\n")
        mark = self.folder / "killed"
        if self.is_killed and self.global_step == 10 and self.global_rank and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(config: dict[str, Any]) -> None:
    pl.seed_everything(1)
    rows = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 8, shuffle=True)
    folder = Path(config["folder"])
    model = Model(folder, config["is_killed"])
    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=4,
            accelerator="hpu",
            devices="auto",
            strategy=STRATEGIES[config["strategy"]](),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
    )
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, loader)
    else:
        with checkpoint.as_directory() as found:
            trainer.fit(model, loader, ckpt_path=f"{found}/checkpoint.ckpt")
    cards = folder / f"card{trainer.global_rank}"
    cards.write_text(f"{os.environ['HLS_MODULE_ID']} {trainer.world_size}")


if __name__ == "__main__":
    strategy, folder, is_killed = sys.argv[1:]
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20)
    TorchTrainer(
        train,
        train_loop_config={
            "strategy": strategy,
            "folder": folder,
            "is_killed": is_killed == "yes",
        },
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1, "HPU": 1}),
        run_config=RunConfig(
            storage_path=f"{folder}/results", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
