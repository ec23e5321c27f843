"""A model with what is easily lost in a checkpoint, and its trainings in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor, nn

from tests.helpers.tiny import QUIET
from tests.strategies.sharded_cases import Batch, Stack, loader

NUM_BATCHES = 3
SEED = 5


class Rich(Stack):
    """Two groups of parameters, tied ones, a frozen one, a buffer, and dropout if there is a rate.

    Each group has its weight decay. The head's bias is one number, which no two ranks can share.
    """

    def __init__(self, optimizer: str = "adamw", dropout: float = 0.0) -> None:
        super().__init__(optimizer)
        self.dropout = nn.Dropout(dropout)
        self.net[2].up.weight = self.net[1].up.weight
        self.net[2].norm.weight.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.long))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.seen += 1
        return super().training_step([self.dropout(batch[0]), batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        trained = [each for each in self.parameters() if each.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() > 1], "weight_decay": 0.5},
            {"params": [each for each in trained if each.dim() == 1], "weight_decay": 0.0},
        ]
        if self.optimizer == "sgd":
            optimizer: Any = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        else:
            optimizer = torch.optim.AdamW(groups, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    """The Trainer's arguments for a stage; strategies serve one Trainer."""
    return {"strategy": DeepSpeedStrategy(stage=stage), **settings}


def trainer(num_ranks: int, **settings: Any) -> pl.Trainer:
    """One that sees to nothing but what it is told."""
    defaults = {"accelerator": "hpu", "devices": num_ranks, "use_distributed_sampler": False}
    return pl.Trainer(**{**defaults, **QUIET, **settings})


def fit(
    rank: int,
    num_ranks: int,
    model: Rich,
    *,
    max_epochs: int = 2,
    checkpoints: str | Path | None = None,
    ckpt_path: str | None = None,
    **settings: Any,
) -> tuple[list[float], pl.Trainer]:
    """Train, of `NUM_BATCHES` an epoch; with `checkpoints`, save each epoch there.

    Returns:
        The losses of the steps on this rank, and the Trainer.
    """
    if checkpoints is not None:
        settings["enable_checkpointing"] = True
        settings["callbacks"] = [
            ModelCheckpoint(dirpath=checkpoints, filename="{epoch}", save_top_k=-1, save_last=True)
        ]
    chosen = trainer(num_ranks, max_epochs=max_epochs, **settings)
    pl.seed_everything(SEED + rank, verbose=False)
    chosen.fit(model, loader(rank, num_ranks, NUM_BATCHES), ckpt_path=ckpt_path)
    return [loss.item() for loss in model.losses], chosen


def evaluate(rank: int, num_ranks: int, ckpt_path: str, **settings: Any) -> float:
    """The loss of a fresh model with a checkpoint's weights."""
    batches = loader(rank, num_ranks, NUM_BATCHES)
    chosen = trainer(num_ranks, **settings)
    (found,) = chosen.test(_forgetful(), batches, ckpt_path=ckpt_path, verbose=False)
    return found["test_loss"]


def _forgetful() -> Rich:
    """With weights that no checkpoint has."""
    model = Rich()
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.1)
    return model
