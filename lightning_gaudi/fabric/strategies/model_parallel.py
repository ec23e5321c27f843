"""`HPUModelParallelStrategy`, for FSDP2 and tensor parallelism that a function applies."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override

from lightning_gaudi._core.precision.gradient_clipping import clip_dtensor_norm, clip_dtensor_value
from lightning_gaudi._patches.fsdp2 import gather_at_once
from lightning_gaudi._patches.optimizers import step_kinds_apart

from ...distributed.device_mesh import (
    FollowsFreezing,
    check_eager,
    check_parallelized,
    draw_alike,
    move_whole,
    share_overflows,
    start_alike,
    sum_and_divide,
)
from ...distributed.sharding import ModelParallelMixin
from .sharded import ShardedHPUStrategy

_MAKE_LATER = (
    "Set the model up first, and make the optimizer from what that returns: "
    "model = fabric.setup_module(model), optimizer = fabric.setup_optimizers(...)."
)


class HPUModelParallelStrategy(ModelParallelMixin, ShardedHPUStrategy, ModelParallelStrategy):
    """Trains with FSDP2 and tensor parallelism that `parallelize_fn(module, device_mesh)` applies.

    Every `ModelParallelStrategy` becomes one on accelerator "hpu" and keeps its arguments. There is
    no name to pass instead, since it needs that function. It differs from Lightning's in that

    - an optimizer made before `Fabric.setup` trains the shards (there it trains nothing);
    - modules that are left whole are moved to the card, and start alike on all;
    - gradients of several meshes, and those beside plain tensors, are clipped together.
    """

    # Maps parameters that `parallelize_fn` has removed from a module to the names that they had.
    _lost: MutableMapping[Tensor, str] | None = None

    @override
    def setup_module(self, module: Module) -> Module:
        """Parallelizes the module and moves the rest of it.

        An optimizer that was made for it before goes on with its shards.

        Raises:
            MisconfigurationException: `parallelize_fn` has parallelized nothing.
        """
        before = dict(module.named_parameters())
        parallel = super().setup_module(module)
        check_eager(parallel)
        sum_and_divide(parallel)
        check_parallelized(parallel, self.device_mesh, "parallelize_fn")
        move_whole(parallel, self.root_device)
        start_alike(parallel, self.device_mesh)
        draw_alike(self.device_mesh)
        share_overflows(self.precision)
        step_kinds_apart()
        gather_at_once()
        # Before FSDP2's own hook, which gathers the weights.
        parallel.register_forward_pre_hook(FollowsFreezing(parallel).update, prepend=True)
        self._note_replaced(before, parallel)
        self._note_lost(before, parallel)
        return parallel

    def _note_lost(self, before: Mapping[str, Tensor], module: Module) -> None:
        if self._lost is None:
            self._lost = WeakTensorKeyDictionary()
        now = dict(module.named_parameters(remove_duplicate=False))
        for name, parameter in before.items():
            if name not in now:
                self._lost[parameter] = name

    @override
    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Lets the optimizer step the shards, even if it was made before them.

        Raises:
            ValueError: It holds weights that the model no longer has, or states of them.
        """
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        lost = self._lost or {}
        if names := [lost[parameter] for parameter in held if parameter in lost]:
            raise ValueError(
                f"The optimizer was made for the model's {names[0]!r}, which parallelize_fn has "
                f"renamed or removed. {_MAKE_LATER}"
            )
        if any(self._on_hpu(parameter) is not parameter for parameter in optimizer.state):
            raise ValueError(
                "The optimizer has states for whole weights, but parallelize_fn has put shards in "
                f"their place. {_MAKE_LATER} Then load its states from a checkpoint."
            )
        return super().setup_optimizer(optimizer)

    @override
    def clip_gradients_norm(
        self,
        module: Module,
        optimizer: Optimizer,
        max_norm: float | int,
        norm_type: float | int = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clips by the norm over all shards, which it returns as a plain tensor."""
        self.precision.unscale_gradients(optimizer)
        return clip_dtensor_norm(
            self.precision.main_params(optimizer),
            max_norm,
            norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    @override
    def clip_gradients_value(
        self, module: Module, optimizer: Optimizer, clip_val: float | int
    ) -> None:
        """Clips each element."""
        self.precision.unscale_gradients(optimizer)
        clip_dtensor_value(self.precision.main_params(optimizer), clip_val)
