"""A model that trains in a moment, for either of Lightning's namespaces."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NUM_FEATURES = 8

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Trainer settings that leave out what a test does not look at."""


def batches(num_batches: int, batch_size: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    """The same batches each time, in the same order."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(num_batches * batch_size, NUM_FEATURES, generator=generator)
    return DataLoader(TensorDataset(data), batch_size=batch_size)


class TinyModule(pl.LightningModule):
    """A regression with dropout; `losses` holds the loss of each step, on its device."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(NUM_FEATURES, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 1)
        )
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]).squeeze(-1) - batch[0].sum(-1)).pow(2).mean()
        self.losses.append(loss.detach())
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.net(batch[0]).pow(2).mean())

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class ValidatedModule(TinyModule):
    """With validation too."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch[0]).pow(2).mean())


def hpu_trainer(**settings: Any) -> pl.Trainer:
    """A quiet Trainer on one HPU."""
    return pl.Trainer(**{"accelerator": "hpu", "devices": 1, **QUIET, **settings})
