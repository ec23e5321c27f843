"""`HPUDDPStrategy`: Fabric with the same model on several cards."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.registry import _StrategyRegistry
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from ... import distributed
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

_Value = TypeVar("_Value")


class HPUDDPStrategy(DDPStrategy, HPUStrategy):
    """Data-parallel training over HCCL: `Fabric(strategy="hpu_ddp")`, and what `"auto"` gives.

    Every `ddp` name and `DDPStrategy` instance becomes one on accelerator "hpu" and keeps its
    arguments. It takes those of Lightning's `DDPStrategy`; DistributedDataParallel gets the
    vendor's settings (see `distributed.wrap`) where the user has none.
    """

    strategy_name = "hpu_ddp"

    @property
    @override
    def root_device(self) -> torch.device:
        """This process's card, which it sees as `hpu:0`; `parallel_devices` tells which it is."""
        return distributed.DEVICE

    @override
    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if self._start_method == "popen":
            self._launcher = HPUScriptLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )
        else:
            self._launcher = HPUSpawnLauncher(self, start_method=self._start_method)

    @override
    def setup_environment(self) -> None:
        """Choose this rank's card, prepare it, then connect all ranks."""
        assert self.parallel_devices is not None
        distributed.select_card(self.parallel_devices, self.local_rank)
        super().setup_environment()

    @override
    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        assert self.cluster_environment is not None
        self._process_group_backend = distributed.checked_backend(self._process_group_backend)
        distributed.init_process_group(
            self.cluster_environment, self._process_group_backend, self._timeout
        )

    @override
    def _determine_ddp_device_ids(self) -> None:
        """None: DistributedDataParallel takes the device from the module."""

    @override
    def setup_module(self, module: Module) -> DistributedDataParallel:
        """Have the module's gradients averaged over the ranks in backward.

        Unless the user has a setting for its buffers, they are those of rank 0 in each evaluation
        (`module.eval()`), the first forward of which all ranks must then do.
        """
        wrapped = distributed.wrap(module, self._ddp_kwargs)
        if self._ddp_kwargs.keys().isdisjoint({"broadcast_buffers", "forward_sync_buffers"}):
            distributed.sync_buffers_before_evaluation(wrapped)
        return wrapped

    @override
    def module_to_device(self, module: Module) -> None:
        """Move the module, with its tied weights tied."""
        self._move(module)

    @override
    def all_reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduce a tensor over the ranks; see `distributed.reduce`. Anything else stays."""
        if not isinstance(tensor, Tensor):
            return tensor
        return distributed.reduce(tensor, group, reduce_op)

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait until all ranks are here; the devices work on."""
        distributed.barrier()

    @override
    def broadcast(self, obj: _Value, src: int = 0) -> _Value:
        """What rank `src` has; the devices work on."""
        value: _Value = distributed.broadcast_object(obj, src)
        return value

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """What all ranks (or any of them) decided; the devices work on."""
        return distributed.decide(decision, all_ranks=all)

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Make the names known to Lightning; `"hpu_parallel"` is the one of older projects."""
        for name in (cls.strategy_name, "hpu_parallel"):
            strategy_registry.register(name, cls, description=cls.__name__)


HPUParallelStrategy = HPUDDPStrategy
"""The name of lightning-habana."""
