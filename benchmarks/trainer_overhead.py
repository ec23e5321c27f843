"""What a step costs in `Trainer(accelerator="hpu")` against `Trainer(accelerator="cpu")`.

Run with `lightning-gaudi simulate --cards 1 -- python benchmarks/trainer_overhead.py`. Both
trainers run the same tiny MLP in one process, in turns; the cost of the simulated device counts.
"""

from __future__ import annotations

import logging
import sys
import warnings
from statistics import median
from time import perf_counter

import torch
from interleaved import Result, exit_code, table
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 20, 300, 11
BATCH_SIZE = 8


class TinyMlp(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Stopwatch(Callback):
    """Times the steps after the warm-up, without asking the device for anything."""

    def __init__(self) -> None:
        self.start = self.end = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        if batch_idx == NUM_WARMUP_STEPS:
            self.start = perf_counter()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.end = perf_counter()

    @property
    def seconds_per_step(self) -> float:
        return (self.end - self.start) / NUM_STEPS


def seconds_per_step(accelerator: str) -> float:
    """Train anew and return the mean time of a step."""
    torch.manual_seed(0)
    num_samples = BATCH_SIZE * (NUM_WARMUP_STEPS + NUM_STEPS)
    samples = TensorDataset(torch.randn(num_samples, 16), torch.randint(4, (num_samples,)))
    stopwatch = Stopwatch()
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        logger=False,
        callbacks=[stopwatch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TinyMlp(), DataLoader(samples, batch_size=BATCH_SIZE))
    return stopwatch.seconds_per_step


def main() -> int:
    """Measure, print a table, and return 1 if the ratio is above its limit."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for accelerator in ("hpu", "cpu"):
        seconds_per_step(accelerator)
    times: dict[str, list[float]] = {"hpu": [], "cpu": []}
    for index in range(NUM_ROUNDS):
        for accelerator in ("hpu", "cpu") if index % 2 else ("cpu", "hpu"):
            times[accelerator].append(seconds_per_step(accelerator))
    ratio = median(hpu / cpu for hpu, cpu in zip(times["hpu"], times["cpu"], strict=True))
    name = "Trainer, tiny MLP, one step"
    result = Result(name, median(times["hpu"]), median(times["cpu"]), ratio, limit=1.6)
    print(table([result], "hpu", "cpu"))
    return exit_code([result])


if __name__ == "__main__":
    sys.exit(main())
