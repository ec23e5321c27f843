"""More trials of Ray Tune than there are cards: which card each had, and when.

python ray_trials.py FOLDER 8 asha
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import ray
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler

from tests.helpers.tiny import QUIET, ValidatedModule, batches


def train(config: dict[str, Any]) -> None:
    begun = time.time()
    report = TuneReportCallback({"loss": "val_loss"}, on="validation_end")
    options = {**QUIET, "callbacks": [report], "num_sanity_val_steps": 0}
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=3, **options)
    try:
        trainer.fit(ValidatedModule(), batches(4), batches(1))
    finally:
        found = {"card": os.environ["HLS_MODULE_ID"], "begun": begun, "ended": time.time()}
        Path(config["folder"], f"trial{os.getpid()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    folder, num_trials, scheduler = sys.argv[1:]
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 * 2**20)
    asha = ASHAScheduler(grace_period=1) if scheduler == "asha" else None
    results = tune.Tuner(
        tune.with_resources(train, {"CPU": 1, "HPU": 1}),
        param_space={"folder": folder, "number": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=int(num_trials), scheduler=asha
        ),
        run_config=tune.RunConfig(storage_path=f"{folder}/results"),
    ).fit()
    print("errors:", results.num_errors, "of", len(results))
