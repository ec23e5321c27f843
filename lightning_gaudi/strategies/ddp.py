"""`HPUDDPStrategy`: the same model on several cards, each with its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_gaudi._core.tied_weights import kept_tied

from ..distributed import ddp
from .exact_resume import KEY as EXACT_RESUME
from .parallel import RankedHPUStrategy

_ORDER = "gradient_order"


class HPUDDPStrategy(RankedHPUStrategy, DDPStrategy):
    """Data-parallel training over HCCL: `Trainer(strategy="hpu_ddp")`, and what `"auto"` gives.

    Every `ddp` name and `DDPStrategy` instance becomes one on accelerator "hpu" and keeps its
    arguments. It takes those of Lightning's `DDPStrategy`; DistributedDataParallel gets the
    vendor's settings (see `distributed.ddp`) where the user has none.
    """

    strategy_name = "hpu_ddp"
    old_names = ("hpu_parallel",)

    # A class attribute, since an instance of Lightning's own strategy may have become one of ours.
    _gradient_order: ddp.GradientOrder | None = None

    @override
    def setup_distributed(self) -> None:
        """Connects all ranks over HCCL."""
        self._connect()

    @override
    def determine_ddp_device_ids(self) -> None:
        """None: DistributedDataParallel takes the device from the model."""

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        return ddp.wrap(model, self._ddp_kwargs)

    @override
    def _register_ddp_hooks(self) -> None:
        # Lightning registers them on CUDA only.
        assert isinstance(self.model, DistributedDataParallel)
        hook, wrapper = self._ddp_comm_hook, self._ddp_comm_wrapper
        if hook is None:
            return
        hook = hook if wrapper is None else wrapper(hook)
        if getattr(hook, "__name__", "").startswith("bf16_compress"):
            # torch knows these by their names, and allows them with CUDA and XPU only.
            bf16_hook, hook = hook, lambda state, bucket: bf16_hook(state, bucket)
        _register_ddp_comm_hook(self.model, self._ddp_comm_state, hook)

    @override
    def on_train_start(self) -> None:
        """Notes in which order gradients come, for who goes on from a checkpoint of this fit."""
        super().on_train_start()
        model = self.model
        if not isinstance(model, DistributedDataParallel) or self._gradient_order is not None:
            return
        if self.reliability.exact_resume and ddp.rebuilds_buckets(model):
            self._gradient_order = ddp.GradientOrder(model)

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cuts the graph after backward."""
        super().post_backward(closure_loss)
        ddp.check_averaged(self.model, self.optimizers)
        if self._gradient_order is not None:
            self._gradient_order.end_of_backward()

    @override
    def _add_resume_state(self, checkpoint: dict[str, Any]) -> None:
        super()._add_resume_state(checkpoint)
        order = self._gradient_order
        if EXACT_RESUME in checkpoint and order is not None and order.names is not None:
            checkpoint[EXACT_RESUME][_ORDER] = order.names

    @override
    def _load_resume_state(self, checkpoint: Mapping[str, Any]) -> None:
        super()._load_resume_state(checkpoint)
        names, model = checkpoint.get(EXACT_RESUME, {}).get(_ORDER), self.model
        if names is None or not self.reliability.exact_resume:
            return
        if isinstance(model, DistributedDataParallel) and ddp.rebuilds_buckets(model):
            self._gradient_order = ddp.begin_with_order(model, names)

    @override
    def teardown(self) -> None:
        """Forgets the order of the gradients; the model may be another in the next fit."""
        order, self._gradient_order = self._gradient_order, None
        if order is not None:
            order.release()
        super().teardown()

    @override
    def model_to_device(self) -> None:
        """Moves the model, and ties again the weights that were tied before."""
        with kept_tied(self.model):
            super().model_to_device()

    @override
    def on_validation_start(self) -> None:
        """Evaluates the same model on all ranks: with the buffers of rank 0."""
        super().on_validation_start()
        model = self.model
        if isinstance(model, DistributedDataParallel) and not model.broadcast_buffers:
            ddp.sync_buffers(model)


HPUParallelStrategy = HPUDDPStrategy
"""The name of lightning-habana and of Lightning before 2.5.6."""
