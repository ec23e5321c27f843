"""`HPUDDPStrategy`, which trains the same model on several cards with Fabric."""

from __future__ import annotations

from lightning.fabric.strategies.ddp import DDPStrategy
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from ...distributed import ddp
from ...distributed.strategy import RankedMixin
from .base import HPUStrategy


class HPUDDPStrategy(RankedMixin, HPUStrategy, DDPStrategy):
    """Data-parallel training over HCCL: `Fabric(strategy="hpu_ddp")`, and what `"auto"` gives.

    Every `ddp` name and `DDPStrategy` instance becomes one on accelerator "hpu" and keeps its
    arguments. It takes those of Lightning's `DDPStrategy`; DistributedDataParallel gets the
    vendor's settings (see `distributed.ddp`) where the user has none.
    """

    strategy_name = "hpu_ddp"

    @override
    def _determine_ddp_device_ids(self) -> None:
        """Returns None: DistributedDataParallel takes the device from the module."""

    @override
    def setup_module(self, module: Module) -> DistributedDataParallel:
        """Wraps the module so that backward averages its gradients over the ranks.

        Unless the user has a setting for buffers, all ranks get those of rank 0 at the first
        forward of each evaluation (`module.eval()`), which all ranks must run then.
        """
        # Before it is wrapped: DistributedDataParallel's hooks must stay outside of graphs.
        self._compile_for_fabric(module)
        wrapped = ddp.wrap(module, self._ddp_kwargs)
        if self._ddp_kwargs.keys().isdisjoint({"broadcast_buffers", "forward_sync_buffers"}):
            ddp.sync_buffers_before_evaluation(wrapped)
        return wrapped

    @override
    def module_to_device(self, module: Module) -> None:
        """Moves the module, and keeps its tied weights tied."""
        self._move(module)


HPUParallelStrategy = HPUDDPStrategy
"""The name of lightning-habana."""
