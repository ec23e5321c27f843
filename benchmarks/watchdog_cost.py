"""What the watchdog and the look at losses cost a training step of a tiny BERT on two cards.

Run with `python benchmarks/watchdog_cost.py`. Each round starts a program with both and one
without, in turns, whose first rank prints the median time of its steps and how often it waited for
its card. The metric is logged in no step, so the only waits are those for the losses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 20, 150, 5
LIMIT = 1.02
SIDES = {"off": "watchdog=off,stop_on_nan=off", "on": "on"}


def train() -> None:
    """Train, as one of two ranks; rank 0 prints what it measured."""
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
    from torch.utils.data import DataLoader
    from transformers import BertConfig, BertForMaskedLM

    from lightning_gaudi import vendor

    class Bert(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2}
            self.bert = BertForMaskedLM(BertConfig(vocab_size=1000, num_hidden_layers=2, **sizes))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.bert(input_ids=batch, labels=batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Stopwatch(Callback):
        def __init__(self) -> None:
            self.starts: list[float] = []
            self.waits: list[int] = []

        def on_train_batch_start(self, *args: Any) -> None:
            self.starts.append(perf_counter())
            self.waits.append(
                int((vendor.metric("host_sync") or {"TotalNumber": 0})["TotalNumber"])
            )

    seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    stopwatch = Stopwatch()
    trainer = Trainer(
        accelerator="hpu",
        devices=2,
        strategy="ddp",
        max_steps=NUM_WARMUP_STEPS + NUM_STEPS,
        logger=False,
        callbacks=[stopwatch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    samples = torch.randint(1000, (16 * (NUM_WARMUP_STEPS + NUM_STEPS), 64))
    trainer.fit(Bert(), DataLoader(samples, batch_size=8))
    starts = stopwatch.starts[NUM_WARMUP_STEPS:]
    steps = [after - before for before, after in pairwise(starts)]
    if trainer.is_global_zero:
        waits = stopwatch.waits[-1] - stopwatch.waits[NUM_WARMUP_STEPS]
        print(json.dumps({"seconds": median(steps), "waits": waits}), flush=True)


def measure(side: str) -> dict[str, float]:
    """Run one program to its end."""
    env = {**os.environ, "LIGHTNING_GAUDI_SIMULATE": "2", "OMP_NUM_THREADS": "1"}
    env |= {"LIGHTNING_GAUDI_RELIABILITY": SIDES[side], "LIGHTNING_GAUDI_COMPILE": "none"}
    command = [sys.executable, __file__, "train"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure both sides in turns."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for index in range(NUM_ROUNDS):
        for side in sorted(SIDES, reverse=index % 2 == 0):
            found[side].append(measure(side))
    times = {side: median(each["seconds"] for each in runs) for side, runs in found.items()}
    ratio = times["on"] / times["off"]
    waits = {side: found[side][0]["waits"] / NUM_STEPS for side in SIDES}
    print(f"off {times['off'] * 1e3:.2f} ms, {waits['off']:.3f} waits a step")
    print(f"on  {times['on'] * 1e3:.2f} ms, {waits['on']:.3f} waits a step")
    print(f"ratio {ratio:.3f}, limit {LIMIT}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(train() if sys.argv[1:] == ["train"] else main())
