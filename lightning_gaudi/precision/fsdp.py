"""Has `HPUFSDPPrecision`, the Trainer's plugin for the precisions of FSDP."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.plugins.precision.fsdp import FSDPPrecision
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core.precision.gradient_clipping import clip_fsdp_norm

from ..fabric.precision.fsdp import HPUShardedPrecision
from .plugin import restore_scale, unscale_to_clip


class HPUFSDPPrecision(HPUShardedPrecision, FSDPPrecision):
    """Sets how FSDP holds and computes numbers on an HPU: `Trainer(precision=...)`."""

    # A class attribute, since an instance of Lightning's own plugin may have become one of ours.
    model: Module | None = None
    """The module that is in shards; the strategy sets it."""
    is_sharded = False
    """Whether an earlier run of this process has put the module into shards; see `model`."""

    @override
    def convert_module(self, module: Module) -> Module:
        """Brings the weights into the precision they are held in, unless they are in shards."""
        return module if self.is_sharded else super().convert_module(module)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the scale of a run on other devices, or with another strategy."""
        restore_scale(self, checkpoint)

    @override
    def clip_gradients(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clips gradients after unscaling those of `"16-mixed"`, also if called by hand."""
        unscale_to_clip(self, optimizer)
        super().clip_gradients(optimizer, *args, **kwargs)

    @override
    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clips by the norm of the optimizer's gradients over the shards of all ranks."""
        assert self.model is not None
        clip_fsdp_norm(self.model, optimizer, clip_val)
