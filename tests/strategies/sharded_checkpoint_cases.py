"""Trainings in shards that are saved after an epoch, and go on from any checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn

from tests.helpers.tiny import QUIET
from tests.strategies.model_parallel_cases import parallelize
from tests.strategies.sharded_cases import Block, Stack, loader

NUM_BATCHES = 3
"""Of an epoch."""

_FSDP: dict[str, Any] = {"auto_wrap_policy": {Block}}


def _model_parallel(data: int, tensors: int, *, in_shards: bool = True) -> ModelParallelStrategy:
    return ModelParallelStrategy(data, tensors, save_distributed_checkpoint=in_shards)


STRATEGIES: dict[str, Callable[[int], Any]] = {
    "ddp": lambda num: "ddp",
    "fsdp_full": lambda num: FSDPStrategy(**_FSDP),
    "fsdp_shards": lambda num: FSDPStrategy(state_dict_type="sharded", **_FSDP),
    "fsdp_flat_full": lambda num: FSDPStrategy(use_orig_params=False, **_FSDP),
    "fsdp_flat_shards": lambda num: FSDPStrategy(
        use_orig_params=False, state_dict_type="sharded", **_FSDP
    ),
    "fsdp_offload_shards": lambda num: FSDPStrategy(
        cpu_offload=True, state_dict_type="sharded", **_FSDP
    ),
    "fsdp_hybrid_shards": lambda num: FSDPStrategy(
        sharding_strategy="HYBRID_SHARD",
        device_mesh=(num // 2, 2),
        state_dict_type="sharded",
        **_FSDP,
    ),
    "fsdp_whole_shards": lambda num: FSDPStrategy(
        sharding_strategy="NO_SHARD", state_dict_type="sharded", **_FSDP
    ),
    "fsdp2_full": lambda num: _model_parallel(num, 1, in_shards=False),
    "fsdp2_shards": lambda num: _model_parallel(num, 1),
    "tensor_full": lambda num: _model_parallel(1, num, in_shards=False),
    "tensor_shards": lambda num: _model_parallel(1, num),
    "mesh_full": lambda num: _model_parallel(num // 2, 2, in_shards=False),
    "mesh_shards": lambda num: _model_parallel(num // 2, 2),
}
"""Strategies of some number of cards, by a name that ends with the kind of checkpoint."""


class Resumable(Stack):
    """With dropout, and two groups of parameters as in the training of any transformer.

    Args:
        dropout: Of the features.
        is_parallel: Whether `configure_model` parallelizes it.
        is_grouped: Whether biases have settings of their own.
    """

    def __init__(
        self, dropout: float = 0.0, *, is_parallel: bool = False, is_grouped: bool = True
    ) -> None:
        super().__init__()
        self.is_grouped = is_grouped
        self.dropout = dropout
        self.is_parallel = is_parallel

    def configure_model(self) -> None:
        if self.is_parallel:
            self.net = parallelize(self.net, self.device_mesh)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        features = nn.functional.dropout(batch[0], self.dropout)
        return super().training_step([features, batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
        # By names: to FSDP each weight has one dimension, and flat ones have but one group.
        for name, weight in self.named_parameters():
            groups[self.is_grouped and name.endswith("bias")]["params"].append(weight)
        groups = groups if self.is_grouped else groups[:1]
        optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def trainer_of(name: str, num_ranks: int, **settings: Any) -> pl.Trainer:
    """A Trainer with one of `STRATEGIES`."""
    defaults = {"accelerator": "hpu", "devices": num_ranks, "use_distributed_sampler": False}
    return pl.Trainer(**{**defaults, "strategy": STRATEGIES[name](num_ranks), **QUIET, **settings})


def model_of(name: str, dropout: float = 0.0, *, is_grouped: bool = True) -> Resumable:
    """The model for one of `STRATEGIES`."""
    is_parallel = name.startswith(("fsdp2", "tensor", "mesh"))
    return Resumable(dropout, is_parallel=is_parallel, is_grouped=is_grouped)


def part_of(name: str, rank: int, num_ranks: int) -> Any:
    """A rank's part of the batches: ranks that share tensors get the same samples."""
    num_tensors = {"tensor": num_ranks, "mesh": 2}.get(name.split("_")[0], 1)
    return loader(rank // num_tensors, num_ranks // num_tensors, NUM_BATCHES)


def fit(
    name: str, num_ranks: int, epochs: int, path: Path | None = None, **model_settings: Any
) -> tuple[list[float], pl.Trainer]:
    """Train with one of `STRATEGIES`, from the start or from a checkpoint.

    Returns:
        The loss of each step on this rank, and the Trainer.
    """
    torch.manual_seed(7)
    model = model_of(name, **model_settings)
    trainer = trainer_of(name, num_ranks, max_epochs=epochs)
    trainer.fit(model, part_of(name, trainer.global_rank, num_ranks), ckpt_path=path)
    return [loss.item() for loss in model.losses], trainer


def evaluate(name: str, num_ranks: int, path: Path) -> float:
    """The loss of a checkpoint on this rank's part, by `Trainer.test`."""
    trainer = trainer_of(name, num_ranks)
    part = part_of(name, trainer.global_rank, num_ranks)
    (found,) = trainer.test(model_of(name), part, ckpt_path=path, verbose=False)
    return found["test_loss"]
