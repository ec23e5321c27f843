"""A model in blocks, and trainings of it whose losses must not depend on how it is sharded.

A global batch is the same eight samples whatever the number of ranks: the mean of the ranks' losses
in a step is the loss of one process on the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.helpers.tiny import QUIET

NUM_FEATURES = 16
NUM_BLOCKS = 3
NUM_STEPS = 10
GLOBAL_BATCH_SIZE = 8
SEED = 11
Batch = list[Tensor]


def loader(rank: int, num_ranks: int, num_batches: int = NUM_STEPS) -> DataLoader[Any]:
    """Features and targets: a rank's part of each global batch.

    Ranks of one tensor-parallel group are one rank here: they get the same samples.
    """
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(GLOBAL_BATCH_SIZE * num_batches, NUM_FEATURES, generator=generator)
    data = TensorDataset(features, features.sum(-1, keepdim=True).sin())
    sampler = DistributedSampler(data, num_ranks, rank, shuffle=False)
    return DataLoader(data, batch_size=GLOBAL_BATCH_SIZE // num_ranks, sampler=sampler)


class Block(nn.Module):
    """Two layers around a residual: what is sharded, wrapped, checkpointed as one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(NUM_FEATURES)
        self.up = nn.Linear(NUM_FEATURES, 4 * NUM_FEATURES)
        self.down = nn.Linear(4 * NUM_FEATURES, NUM_FEATURES)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


def make_net() -> nn.Sequential:
    """The blocks and a head; the same weights each time, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)), nn.Linear(NUM_FEATURES, 1))


class Stack(pl.LightningModule):
    """A regression, as a project has it that knows of no strategy.

    `losses` holds the loss of each step on this rank, on its device.
    """

    def __init__(self, optimizer: str = "adamw") -> None:
        super().__init__()
        self.optimizer = optimizer
        self.net = make_net()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]).float() - batch[1].float()).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("test_loss", (self.net(batch[0]).float() - batch[1].float()).pow(2).mean())

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        if self.optimizer == "adamw":
            return torch.optim.AdamW(self.parameters(), lr=1e-2)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class ValidatedStack(Stack):
    """With validation too."""

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", (self.net(batch[0]).float() - batch[1].float()).pow(2).mean())


class LateStack(Stack):
    """The same, whose layers are made in `configure_model`: in shards, where a strategy can."""

    def __init__(self, optimizer: str = "adamw") -> None:
        super().__init__(optimizer)
        del self.net

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = make_net()


@dataclass(frozen=True)
class Case:
    """A training; `fit` does it on the accelerator, and in the shards, that a test says."""

    optimizer: str
    settings: dict[str, Any] = field(default_factory=dict)

    def fit(
        self,
        num_ranks: int,
        *,
        model: Stack | None = None,
        rank: int | None = None,
        num_data_ranks: int | None = None,
        **settings: Any,
    ) -> tuple[list[float], pl.Trainer]:
        """Train.

        Args:
            num_ranks: Cards, or 1 on the CPU.
            model: A `Stack` by default.
            rank: This process among the data-parallel ones; the Trainer's by default.
            num_data_ranks: Ranks that get samples of their own; `num_ranks` by default.
            settings: Further arguments of the Trainer, such as `strategy`.

        Returns:
            The loss of each step on this rank, and the Trainer.
        """
        model = Stack(self.optimizer) if model is None else model
        defaults = {"accelerator": "hpu", "devices": num_ranks, "max_epochs": 1, **QUIET}
        trainer = pl.Trainer(
            **{**defaults, "use_distributed_sampler": False, **self.settings, **settings}
        )
        num_data_ranks = num_data_ranks or num_ranks
        data_rank = trainer.global_rank if rank is None else rank
        trainer.fit(model, loader(data_rank, num_data_ranks))
        return [loss.item() for loss in model.losses], trainer


CASES = {
    "adamw": Case("adamw"),
    "sgd_accumulated_clipped_scheduled": Case(
        "sgd", {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}
    ),
}
"""What the losses of every strategy must be those of DDP in, within 1e-6."""


def global_losses(ranks: list[list[float]]) -> Tensor:
    """The loss of each step on the whole batch, of shape (steps,), from each rank's."""
    return torch.tensor(ranks, dtype=torch.float64).mean(0)
