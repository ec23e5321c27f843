"""`HPUModelParallelStrategy`, for FSDP2 and tensor parallelism that the model applies."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.device_dtype_mixin import _update_properties
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core.precision.gradient_clipping import clip_dtensor_norm, clip_dtensor_value
from lightning_gaudi._patches.apply import replace
from lightning_gaudi._patches.fsdp2 import gather_at_once
from lightning_gaudi._patches.optimizers import step_kinds_apart

from ..distributed.device_mesh import (
    FollowsFreezing,
    check_eager,
    check_parallelized,
    draw_alike,
    move_whole,
    share_overflows,
    start_alike,
    sum_and_divide,
)
from ..distributed.sharding import ModelParallelMixin
from ..precision.plugin import HPUPrecisionPlugin
from .sharded import ShardedHPUStrategy


class HPUModelParallelStrategy(ModelParallelMixin, ShardedHPUStrategy, ModelParallelStrategy):
    """Trains with the FSDP2 and tensor parallelism that `configure_model` applies to the model.

    Every `ModelParallelStrategy` becomes one on accelerator "hpu" and keeps its arguments;
    `Trainer(strategy="hpu_model_parallel")` has the defaults. It differs from Lightning's in that

    - gradients of several meshes, and those beside plain tensors, are clipped together;
    - shards that FSDP2 offloads (`CPUOffloadPolicy`) stay on the CPU;
    - copies of weights that stay whole start alike, and ranks that share layers draw alike;
    - models that nothing parallelizes are refused, weights that no rank averages are named.
    """

    model_key = "state_dict"

    _freezing: FollowsFreezing | None = None

    @override
    def setup_environment(self) -> None:
        """Connects all ranks and makes their mesh, if the module defines `configure_model`."""
        if not is_overridden("configure_model", self.lightning_module):
            raise MisconfigurationException(
                f"ModelParallelStrategy parallelizes what {type(self.lightning_module).__name__}."
                "configure_model() does, but there is no such method. Define it, and apply torch's "
                "fully_shard or parallelize_module there to layers, with self.device_mesh; or pass "
                "strategy='fsdp', which shards any module."
            )
        super().setup_environment()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Sets up the model, and clips gradients by the norm over all shards."""
        assert self.model is not None
        check_eager(self.model)
        sum_and_divide(self.model)
        if trainer.state.fn == TrainerFn.FITTING:
            where = f"{type(self.lightning_module).__name__}.configure_model()"
            check_parallelized(self.model, self.device_mesh, where)
        super().setup(trainer)
        _clip_shards(self.precision_plugin)
        self._freezing = FollowsFreezing(self.model)
        share_overflows(self.precision_plugin)
        step_kinds_apart()
        gather_at_once()

    @override
    def model_to_device(self) -> None:
        """Moves the parts that are not sharded, and makes their copies equal on all ranks."""
        assert self.model is not None
        move_whole(self.model, self.root_device)
        _update_properties(self.model, device=self.root_device)
        start_alike(self.model, self.device_mesh)

    @override
    def on_train_start(self) -> None:
        """Makes ranks that share layers draw the same random numbers."""
        super().on_train_start()
        draw_alike(self.device_mesh)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Runs one step, once FSDP2 knows which weights train now."""
        if self._freezing is not None:
            self._freezing.update()
        return super().training_step(*args, **kwargs)


def _clip_shards(plugin: Precision) -> None:
    """Lets a precision plugin clip DTensors of any meshes, unless the user's has its own way."""
    kind, name = type(plugin), "shard-clipping"
    ways = (Precision.clip_grad_by_norm, HPUPrecisionPlugin.clip_grad_by_norm)
    if kind.clip_grad_by_norm in ways:
        replace(name, plugin, "clip_grad_by_norm", partial(_clip_by_norm, plugin))
    if kind.clip_grad_by_value is Precision.clip_grad_by_value:
        replace(name, plugin, "clip_grad_by_value", partial(_clip_by_value, plugin))


def _clip_by_norm(plugin: Precision, optimizer: Optimizer, clip_val: float) -> None:
    clip_dtensor_norm(plugin.main_params(optimizer), clip_val)


def _clip_by_value(plugin: Precision, optimizer: Optimizer, clip_val: float) -> None:
    clip_dtensor_value(plugin.main_params(optimizer), clip_val)
