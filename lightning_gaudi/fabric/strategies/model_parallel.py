"""`HPUModelParallelStrategy`: FSDP2, tensor parallelism, or both, as the model defines."""

from __future__ import annotations

from typing import Any

from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi.sharding import dtensors

from .parallel import RankedHPUStrategy


class HPUModelParallelStrategy(RankedHPUStrategy, ModelParallelStrategy):
    """FSDP2, tensor parallelism, or both, as the model defines."""

    strategy_name = "hpu_model_parallel"

    @override
    def setup_module(self, module: Module) -> Module:
        """Parallelize the module; an optimizer that was made before goes on with its shards."""
        before = dict(module.named_parameters())
        module = super().setup_module(module)
        self._note_replaced(before, module)
        return module

    @override
    def clip_gradients_norm(
        self,
        module: Module,
        optimizer: Optimizer,
        max_norm: float | int,
        norm_type: float | int = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip by the norm over all shards, which it returns as a plain tensor."""
        self.precision.unscale_gradients(optimizer)
        return dtensors.clip_norm(
            self.precision.main_params(optimizer),
            max_norm,
            norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    @override
    def clip_gradients_value(
        self, module: Module, optimizer: Optimizer, clip_val: float | int
    ) -> None:
        """Clip each element."""
        self.precision.unscale_gradients(optimizer)
        dtensors.clip_value(self.precision.main_params(optimizer), clip_val)
