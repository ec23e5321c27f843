"""A small model with blocks that can be checkpointed or sharded, for trainings in fp8."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.tiny import QUIET

WIDTH, NUM_CLASSES = 16, 8


class Block(nn.Module):
    """Two layers beside their input, computed a second time in backward if that is asked for."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None or not self.training:
            return x + self.compute(x)
        return x + checkpoint(self.compute, x, use_reentrant=self.reentrant)

    def compute(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Model(pl.LightningModule):
    """Learns which of eight directions a point lies nearest to; notes its losses.

    Args:
        reentrant: How blocks are checkpointed; None: not.
        how: "whole", "fsdp2" or "tensors".
    """

    def __init__(self, reentrant: bool | None = None, how: str = "whole") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(Block(reentrant), Block(reentrant))
        self.lm_head = nn.Linear(WIDTH, NUM_CLASSES, bias=False)
        self.how = how
        self.losses: list[Tensor] = []
        self.is_parallel = False

    def configure_model(self) -> None:
        if self.is_parallel or self.how == "whole":
            return
        self.is_parallel = True
        if self.how == "tensors":
            plan = {"up": ColwiseParallel(use_local_output=False)}
            parallelize_module(self.blocks[0], self.device_mesh["tensor_parallel"], plan)
            return
        for part in (*self.blocks, self.embed, self.lm_head):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def forward(self, points: Tensor) -> Tensor:
        return self.lm_head(self.blocks(self.embed(points)))

    def loss(self, batch: list[Tensor]) -> Tensor:
        scores = self(batch[0]).float()
        with torch.autocast("hpu", enabled=False):
            return functional.cross_entropy(scores, batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Validated(Model):
    """With validation, of which it notes the losses too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.validated: list[Tensor] = []

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.validated.append(self.loss(batch).clone())

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(2, first=8)


def loader(num_batches: int = 8, batch_size: int = 16, first: int = 0) -> DataLoader[Any]:
    """Batches that are the same each time; `first` leaves out as many."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn((first + num_batches) * batch_size, WIDTH, generator=generator)
    classes = (points @ torch.randn(WIDTH, NUM_CLASSES, generator=generator)).argmax(-1)
    start = first * batch_size
    return DataLoader(TensorDataset(points[start:], classes[start:]), batch_size=batch_size)


def fit(
    model: Model,
    num_steps: int = 6,
    ckpt_path: Any = None,
    num_batches: int = 8,
    **settings: Any,
) -> pl.Trainer:
    """Trains it from a seed, on an HPU in fp8 unless told otherwise."""
    torch.manual_seed(5)
    defaults = {"accelerator": "hpu", "devices": 1, "precision": "fp8", "max_steps": num_steps}
    if "plugins" in settings:
        del defaults["precision"]
    trainer = pl.Trainer(**{**defaults, **QUIET, "num_sanity_val_steps": 0, **settings})
    trainer.fit(model, loader(num_batches), ckpt_path=ckpt_path)
    return trainer


def losses_of(model: Model) -> Tensor:
    """The losses of all steps, on the CPU."""
    return torch.stack(model.losses).float().cpu()


def scales_of(trainer: Any) -> dict[str, list[Any]]:
    """What the engines hold, by layer: how often they ran, scales, and what they measured."""
    (layers,) = trainer.precision_plugin._layers
    return {name: _tables(forward.engine) for name, forward in layers.forwards.items()}


def shared_scales(scales: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without what a rank has measured in its last step, and not yet shared."""
    return {name: [each[0], *each[1::4], *each[2::4]] for name, each in scales.items()}


def _tables(engine: Any) -> list[Any]:
    tables = [engine.fp8_meta[f"scaling_{each}"] for each in ("fwd", "hybrid", "bwd")
              if f"scaling_{each}" in engine.fp8_meta]  # fmt: skip
    names = ("scale", "scale_inv", "amax_history", "amax_history_index")
    return [engine.run_cnt, *(getattr(each, name).tolist() for each in tables for name in names)]


class Halves(Model):
    """In one process what two ranks with half of a batch each compute, gradients and all.

    A rank's loss is the mean of its half, whose gradients are twice those of a whole batch.
    """

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return 2 * super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(2)


class RankedModel(Model):
    """On each of two ranks its half of every batch."""

    def train_dataloader(self) -> DataLoader[Any]:
        return loader()

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        half = len(batch[0]) // 2
        start = self.global_rank * half
        return [each[start : start + half] for each in batch]


def strategy_of(name: str) -> Any:
    """A strategy for two ranks."""
    if name == "ddp":
        return "ddp"
    if name == "fsdp":
        return "fsdp"
    if name == "fsdp2":
        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    if name == "tensors":
        return ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    return name
