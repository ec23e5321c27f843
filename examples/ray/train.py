"""The recipe `mrpc` on Ray Train: a worker for each HPU, which goes on where a killed one ended.

    python examples/ray/train.py --workers 2 --strategy ddp

It is what Ray's documents show for Lightning, with `"HPU": 1` among the resources of a worker.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import ray
import ray.train
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

from recipes.mrpc.data import MrpcData
from recipes.mrpc.module import Mrpc

STRATEGIES = {"ddp": RayDDPStrategy, "fsdp": RayFSDPStrategy, "deepspeed": RayDeepSpeedStrategy}


def train(config: dict[str, Any]) -> None:
    """What each worker does."""
    pl.seed_everything(0)
    size = {"vocab_size": 3000, "max_length": 64}
    data = MrpcData(pairs_per_sentence=config["pairs"], **size)
    model = Mrpc(**size, hidden_size=64, initializer_range=0.2, learning_rate=2e-3)
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator=config["accelerator"],
        devices="auto",
        strategy=STRATEGIES[config["strategy"]](),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    if (checkpoint := ray.train.get_checkpoint()) is None:
        trainer.fit(model, data)
        return
    with checkpoint.as_directory() as folder:
        path = Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)
        trainer.fit(model, data, ckpt_path=str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--accelerator", choices=["hpu", "cpu"], default="hpu")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3, help="of each sentence of the data")
    parser.add_argument("--max_failures", type=int, default=1)
    parser.add_argument("--root", default="runs/ray")
    given = parser.parse_args()

    card = {"HPU": 1} if given.accelerator == "hpu" else {}
    result = TorchTrainer(
        train,
        train_loop_config=vars(given),
        scaling_config=ScalingConfig(
            num_workers=given.workers, resources_per_worker={"CPU": 1, **card}
        ),
        run_config=RunConfig(
            name="mrpc",
            storage_path=str(Path(given.root).absolute()),
            failure_config=FailureConfig(max_failures=given.max_failures),
        ),
    ).fit()
    print(f"metric: f1 {result.metrics['val/f1']:.4f}")


if __name__ == "__main__":
    main()
