"""The recipe `mrpc` on Ray Tune: more trials than HPUs, of which each has one for itself.

python examples/ray/tune.py --trials 8 --scheduler asha
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler

from recipes.mrpc.data import MrpcData
from recipes.mrpc.module import Mrpc


def train(config: dict[str, Any]) -> None:
    """One trial."""
    pl.seed_everything(0)
    size = {"vocab_size": 3000, "max_length": 64}
    data = MrpcData(pairs_per_sentence=config["pairs"], **size)
    model = Mrpc(
        **size, hidden_size=64, initializer_range=0.2, learning_rate=config["learning_rate"]
    )
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator=config["accelerator"],
        devices=1,
        callbacks=[TuneReportCallback({"f1": "val/f1"}, on="validation_end")],
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(model, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--scheduler", choices=["fifo", "asha"], default="fifo")
    parser.add_argument("--accelerator", choices=["hpu", "cpu"], default="hpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3, help="of each sentence of the data")
    parser.add_argument("--root", default="runs/ray")
    given = parser.parse_args()

    card = {"HPU": 1} if given.accelerator == "hpu" else {}
    results = tune.Tuner(
        tune.with_resources(train, {"CPU": 1, **card}),
        param_space={**vars(given), "learning_rate": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(
            metric="f1",
            mode="max",
            num_samples=given.trials,
            scheduler=ASHAScheduler(grace_period=1) if given.scheduler == "asha" else None,
        ),
        run_config=tune.RunConfig(name="tune", storage_path=str(Path(given.root).absolute())),
    ).fit()
    best = results.get_best_result()
    print(f"trials: {len(results)}, with an error: {results.num_errors}")
    print(f"metric: f1 {best.metrics['f1']:.4f} at {best.config['learning_rate']:.2e}")


if __name__ == "__main__":
    main()
