"""`HPUModelParallelStrategy`: FSDP2, tensor parallelism, or both, as the model defines."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi.sharding import dtensors

from .parallel import RankedHPUStrategy


class HPUModelParallelStrategy(RankedHPUStrategy, ModelParallelStrategy):
    """FSDP2, tensor parallelism, or both, as the model defines."""

    strategy_name = "hpu_model_parallel"

    def _setup_distributed(self) -> None:
        self._connect()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Set up the model, and have gradients clipped by the norm over all shards."""
        super().setup(trainer)
        _clip_shards(self.precision_plugin)


def _clip_shards(plugin: Precision) -> None:
    """Have a precision plugin clip DTensors of any meshes, unless it has a way of its own."""
    kind, this = type(plugin), plugin
    if kind.clip_grad_by_norm is Precision.clip_grad_by_norm:
        this.clip_grad_by_norm = partial(_clip_by_norm, plugin)  # type: ignore[method-assign]
    if kind.clip_grad_by_value is Precision.clip_grad_by_value:
        this.clip_grad_by_value = partial(_clip_by_value, plugin)  # type: ignore[method-assign]


def _clip_by_norm(plugin: Precision, optimizer: Optimizer, clip_val: float) -> None:
    dtensors.clip_norm(plugin.main_params(optimizer), clip_val)


def _clip_by_value(plugin: Precision, optimizer: Optimizer, clip_val: float) -> None:
    dtensors.clip_value(plugin.main_params(optimizer), clip_val)
