"""What two ranks compute on together, which is one batch or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from lightning_gaudi.callbacks import ThroughputReport, TokenThroughput
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

NUM_BATCHES, ROWS, LENGTH = 6, 2, 4
FLOPS = 3 * 2 * ROWS * LENGTH * 8 * (8 + 2)  # of each layer a forward and two gradients


class Model(LightningModule):
    """A layer of 8 by 8 and one of 8 by 2; in parts, the first alone, of 4 by 8 a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))

    def configure_model(self) -> None:
        mesh = self.device_mesh
        if mesh is not None:
            parallelize_module(self.layers[0], mesh["tensor_parallel"], ColwiseParallel())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs = self.embed(batch["input_ids"])
        hidden = self.layers[0](inputs)
        if self.device_mesh is not None:
            return hidden.sum()  # of this rank's part
        return self.layers[1](hidden).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, foreach=False)


def _fit(rank: int, strategy: str, flops: Any) -> ThroughputReport | str:
    chosen: Any = ModelParallelStrategy(1, 2) if strategy == "tensors" else strategy
    measured = TokenThroughput(0, flops_per_batch=flops)
    trainer = Trainer(
        accelerator="hpu",
        devices=2,
        strategy=chosen,
        max_epochs=1,
        callbacks=[measured],
        **QUIET,
    )
    data = [{"input_ids": torch.randint(10, (ROWS, LENGTH))} for _ in range(NUM_BATCHES)]
    try:
        trainer.fit(Model(), DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return measured.report


def test_a_batch_each_counts_twice(tmp_path: Path) -> None:
    for report in run_trainers(_fit, tmp_path, "ddp", "measured"):
        # Of three batches a rank, the first is not timed: its operations are counted.
        assert (report.num_steps, report.num_samples) == (2, 2 * 2 * ROWS)
        assert report.num_flops == 2 * 2 * FLOPS


@pytest.mark.slow
def test_a_batch_that_both_compute_on_counts_once(tmp_path: Path) -> None:
    for report in run_trainers(_fit, tmp_path, "tensors", 100):
        assert (report.num_steps, report.num_samples) == (NUM_BATCHES, NUM_BATCHES * ROWS)
        assert report.num_flops == NUM_BATCHES * 100


@pytest.mark.slow
def test_what_a_rank_computes_of_a_batch_is_not_taken_for_all(tmp_path: Path) -> None:
    for said in run_trainers(_fit, tmp_path, "tensors", "measured"):
        assert "several ranks (2 in 1 replicas) compute parts of a batch" in said
        assert "flops_per_batch=<number>" in said
