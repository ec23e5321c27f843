"""`HPUDDPStrategy`, which trains the same model on several cards, each with other batches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi.reliability.guard import Part

from ..distributed import ddp
from ..distributed.strategy import RankedMixin
from .base import HPUStrategy
from .exact_resume import KEY as EXACT_RESUME

_ORDER = "gradient_order"


class HPUDDPStrategy(RankedMixin, HPUStrategy, DDPStrategy):
    """Data-parallel training over HCCL: `Trainer(strategy="hpu_ddp")`, and what `"auto"` gives.

    Every `ddp` name and `DDPStrategy` instance becomes one on accelerator "hpu" and keeps its
    arguments. It takes those of Lightning's `DDPStrategy`; DistributedDataParallel gets the
    vendor's settings (see `distributed.ddp`) where the user has none.
    """

    strategy_name = "hpu_ddp"

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _one_bucket: ddp.OneBucket | None = None
    _averages_at_once = False
    """Whether the gradients of the step that is being taken are."""

    @cached_property
    def _gradient_order(self) -> _KeptGradientOrder:
        return _KeptGradientOrder(self)

    def _parts(self) -> tuple[Part, ...]:
        return *super()._parts(), self._gradient_order

    @property
    def fills_buckets(self) -> bool:
        """Whether DistributedDataParallel has gradients in buckets, in the order they come."""
        return self._one_bucket is None

    @override
    def determine_ddp_device_ids(self) -> None:
        """Returns None: DistributedDataParallel takes the device from the model."""

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        return ddp.wrap(model, self._ddp_kwargs)

    @override
    def _register_ddp_hooks(self) -> None:
        # Lightning's method does nothing unless the root device is CUDA (2.6, `strategies/ddp.py`).
        assert isinstance(self.model, DistributedDataParallel)
        hook, wrapper = self._ddp_comm_hook, self._ddp_comm_wrapper
        if hook is None:
            return
        hook = hook if wrapper is None else wrapper(hook)
        if getattr(hook, "__name__", "").startswith("bf16_compress"):
            # torch recognizes these hooks by name and refuses them without CUDA or XPU
            # (`DistributedDataParallel._check_comm_hook`). A lambda has another name.
            bf16_hook, hook = hook, lambda state, bucket: bf16_hook(state, bucket)
        _register_ddp_comm_hook(self.model, self._ddp_comm_state, hook)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Wraps the model, and averages its gradients by one launch where they fit one bucket."""
        super().setup(trainer)
        self._one_bucket = None
        model, module = self.model, self.lightning_module
        is_automatic = module is not None and module.automatic_optimization
        if not is_automatic or not isinstance(model, DistributedDataParallel):
            return
        if ddp.OneBucket.fits(model):
            self._one_bucket = ddp.OneBucket(model)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Returns one step; all its gradients are averaged behind its backward, if at once."""
        model: Any = self.model
        self._averages_at_once = False
        if self._one_bucket is None or not model.require_backward_grad_sync:  # it accumulates
            return super().training_step(*args, **kwargs)
        self._averages_at_once = True
        with model.no_sync():
            return super().training_step(*args, **kwargs)

    @override
    def pre_backward(self, closure_loss: Tensor) -> None:
        """Has the gradients averaged at the end of backward, before anybody looks at them."""
        super().pre_backward(closure_loss)
        if self._averages_at_once:
            assert self._one_bucket is not None
            self._one_bucket.average_after_backward(closure_loss)

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cuts the graph after backward."""
        super().post_backward(closure_loss)
        ddp.check_averaged(self.model, self.optimizers)
        self._gradient_order.note_backward()

    @override
    def model_to_device(self) -> None:
        """Moves the model, and ties again the weights that were tied before."""
        with kept_tied(self.model):
            super().model_to_device()

    @override
    # Without `broadcast_buffers` each rank has its own running statistics of batch norms, by which
    # it would evaluate another model.
    def on_validation_start(self) -> None:
        """Evaluates the same model on all ranks: with the buffers of rank 0."""
        super().on_validation_start()
        model = self.model
        if isinstance(model, DistributedDataParallel) and not model.broadcast_buffers:
            ddp.sync_buffers(model)


HPUParallelStrategy = HPUDDPStrategy
"""The name of lightning-habana and of Lightning before 2.5.6."""


class _KeptGradientOrder(Part):
    """Keeps the order in which gradients arrive, so that a resumed fit sums them alike.

    DistributedDataParallel makes its buckets anew in that order after the first step. In other
    buckets the sums of a reduction round differently.

    Args:
        strategy: The one of this module.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._order: ddp.GradientOrder | None = None

    # Made at the start of each fit, since the model may be another in the next.
    def start(self) -> None:
        """Begins to note the order, unless a checkpoint has given it."""
        model = self._model()
        if model is not None and self._order is None:
            self._order = ddp.GradientOrder(model)

    def note_backward(self) -> None:
        """Notes that backward has run."""
        if self._order is not None:
            self._order.end_of_backward()

    def save(self, state: dict[str, Any]) -> None:
        """Adds the order to what an exact resume needs."""
        order = self._order
        if EXACT_RESUME in state and order is not None and order.names is not None:
            state[EXACT_RESUME][_ORDER] = order.names

    def load(self, state: Mapping[str, Any]) -> None:
        """Begins with the order that was saved."""
        names, model = state.get(EXACT_RESUME, {}).get(_ORDER), self._model()
        if names is not None and model is not None:
            self._order = ddp.begin_with_order(model, names)

    def close(self) -> None:
        """Forgets the order."""
        order, self._order = self._order, None
        if order is not None:
            order.release()

    def _model(self) -> DistributedDataParallel | None:
        """Returns the model if the order of its gradients matters and is to be kept."""
        model = self._strategy.model
        if not isinstance(model, DistributedDataParallel):
            return None
        is_kept = (
            self._strategy.reliability.exact_resume
            and self._strategy.fills_buckets
            and ddp.rebuilds_buckets(model)
        )
        return model if is_kept else None
