"""Models and settings whose training on several cards must equal that on one, on the whole batch.

A global batch is the same eight samples whatever the number of ranks, so all share one reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.helpers.rules import silent_rules
from tests.helpers.tiny import NUM_FEATURES, QUIET

NUM_STEPS = 20
SEED = 7
GLOBAL_BATCH_SIZE = 8
Batch = list[Tensor]


def loader(rank: int, num_ranks: int, num_batches: int = NUM_STEPS) -> DataLoader[Any]:
    """Features, targets and tokens: a rank's part of each global batch."""
    generator = torch.Generator().manual_seed(1)
    num_samples = GLOBAL_BATCH_SIZE * num_batches
    features = torch.randn(num_samples, NUM_FEATURES, generator=generator)
    targets = features.sum(-1, keepdim=True).sin()
    tokens = torch.randint(0, 8, (num_samples,), generator=generator)
    data = TensorDataset(features, targets, tokens)
    # The sampler that Lightning would insert shuffles the data for training.
    sampler = DistributedSampler(data, num_ranks, rank, shuffle=False)
    return DataLoader(data, batch_size=GLOBAL_BATCH_SIZE // num_ranks, sampler=sampler)


class Regression(pl.LightningModule):
    """Two layers; AdamW or SGD with momentum."""

    def __init__(self, optimizer: str = "adamw") -> None:
        super().__init__()
        self.optimizer = optimizer
        self.net = self.make_net()

    def make_net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.GELU(), nn.Linear(16, 1))

    def predict(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return (self.predict(batch, batch_idx) - batch[1]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Branching(Regression):
    """Each step leaves one of two branches without a gradient."""

    def make_net(self) -> nn.Module:
        return nn.ModuleList([Regression.make_net(self), Regression.make_net(self)])

    def predict(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.net[batch_idx % 2](batch[0])


class Checkpointed(Regression):
    """Reentrant checkpoints around one layer used twice: only a static graph allows that."""

    def make_net(self) -> nn.Module:
        return nn.Linear(NUM_FEATURES, NUM_FEATURES)

    def predict(self, batch: Batch, batch_idx: int) -> Tensor:
        hidden = batch[0].clone().requires_grad_()
        for _ in range(2):
            hidden = checkpoint(self.net, hidden, use_reentrant=True).tanh()
        return hidden.sum(-1, keepdim=True)


class Tied(Regression):
    """An embedding that is the output layer too."""

    def make_net(self) -> nn.Module:
        self.head = nn.Linear(NUM_FEATURES, 8, bias=False)
        embedding = nn.Embedding(8, NUM_FEATURES)
        self.head.weight = embedding.weight
        return embedding

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.head(self.net(batch[2]) + batch[0]), batch[2])


class Gan(pl.LightningModule):
    """Two optimizers, stepped by hand; the noise is the batch's features."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.GELU(), nn.Linear(8, 1))
        self.discriminator = nn.Sequential(nn.Linear(1, 8), nn.GELU(), nn.Linear(8, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        noise, real, _ = batch
        generator, discriminator = self.optimizers()
        self.toggle_optimizer(generator)
        self._minimize(generator, self._loss(self.generator(noise), is_real=True))
        self.untoggle_optimizer(generator)
        self.toggle_optimizer(discriminator)
        fake = self._loss(self.generator(noise).detach(), is_real=False)
        self._minimize(discriminator, fake + self._loss(real, is_real=True))
        self.untoggle_optimizer(discriminator)

    def _loss(self, samples: Tensor, *, is_real: bool) -> Tensor:
        scores = self.discriminator(samples)
        return functional.binary_cross_entropy_with_logits(
            scores, torch.full_like(scores, float(is_real))
        )

    def _minimize(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        networks = (self.generator, self.discriminator)
        return [torch.optim.Adam(network.parameters(), lr=1e-3) for network in networks]


class Normalized(Regression):
    """With the statistics of a batch norm."""

    def make_net(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(NUM_FEATURES, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1)
        )


@dataclass(frozen=True)
class Case:
    """One model and its settings."""

    model: type[pl.LightningModule] = Regression
    args: tuple[Any, ...] = ()
    trainer: dict[str, Any] = field(default_factory=dict)
    ddp: dict[str, Any] = field(default_factory=dict)
    """Arguments of `DDPStrategy`."""

    def fit(
        self, num_ranks: int, accelerator: str = "hpu", **settings: Any
    ) -> tuple[pl.LightningModule, pl.Trainer]:
        """Train from the same start."""
        torch.manual_seed(SEED)
        model = self.model(*self.args)
        settings = {"accelerator": accelerator, "devices": num_ranks, **QUIET} | settings
        if num_ranks > 1:
            settings.setdefault("strategy", DDPStrategy(**self.ddp))
        trainer = pl.Trainer(max_epochs=1, **(self.trainer | settings))
        # A card has SyncBatchNorm in lazy mode alone; the numbers are the same here.
        with silent_rules(bool(self.trainer.get("sync_batchnorm"))):
            trainer.fit(model, loader(trainer.global_rank, num_ranks))
        return model, trainer


CASES = {
    "adamw": Case(),
    "sgd": Case(args=("sgd",)),
    "accumulation": Case(trainer={"accumulate_grad_batches": 4}),
    "accumulation_with_a_rest": Case(args=("sgd",), trainer={"accumulate_grad_batches": 6}),
    "clipped_norm": Case(args=("sgd",), trainer={"gradient_clip_val": 0.1}),
    "clipped_value": Case(
        args=("sgd",),
        trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "unused": Case(Branching, ddp={"find_unused_parameters": True}),
    "static_graph": Case(Checkpointed, ddp={"static_graph": True}),
    "own_gradients": Case(ddp={"gradient_as_bucket_view": False, "bucket_cap_mb": 1}),
    "tied": Case(Tied),
    "gan": Case(Gan, ddp={"find_unused_parameters": True}),
    # Not AdamW: it makes steps of the rounding that is all the gradient of a bias before a norm.
    "synchronized_batch_norm": Case(Normalized, args=("sgd",), trainer={"sync_batchnorm": True}),
}
"""Each must give the weights of one process on the CPU, in fp32, within 1e-6."""

LOW_PRECISION = {
    "bf16-mixed": Case(args=("sgd",), trainer={"precision": "bf16-mixed"}),
    "bf16-true": Case(args=("sgd",), trainer={"precision": "bf16-true"}),
}
