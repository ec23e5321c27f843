"""`RankedHPUStrategy`: one of several processes of Fabric, each with its card."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.strategies.parallel import ParallelStrategy
from lightning.fabric.strategies.registry import _StrategyRegistry
from torch import Tensor
from typing_extensions import override

from ... import distributed
from ...conversion import check_start_method
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

_Value = TypeVar("_Value")


class RankedHPUStrategy(HPUStrategy, ParallelStrategy):
    """The base of our strategies for several cards: HCCL between the cards, gloo between the hosts.

    It comes before the one of Lightning's that it is combined with, as the Trainer's does.
    """

    strategy_name: str

    # A class attribute, since an instance of Lightning's own strategy may have become one of ours.
    _start_method: Any = "popen"
    _process_group_backend: Any = None

    @override
    def become_hpu(self, typed: str) -> None:
        """Check what the user passed: the backend, and how processes are started."""
        super().become_hpu(typed)
        distributed.checked_backend(self._process_group_backend)
        check_start_method(self._start_method, typed)

    @property
    @override
    def root_device(self) -> torch.device:
        """This process's card, which it sees as `hpu:0`; `parallel_devices` tells which it is."""
        return distributed.DEVICE

    @override
    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        this: Any = self
        if self._start_method == "popen":
            self._launcher = HPUScriptLauncher(
                self.cluster_environment, this.num_processes, this.num_nodes
            )
        else:
            self._launcher = HPUSpawnLauncher(this, start_method=self._start_method)

    @override
    def setup_environment(self) -> None:
        """Choose this rank's card, prepare it, then connect all ranks."""
        assert self.parallel_devices is not None
        distributed.select_card(self.parallel_devices, self.local_rank)
        super().setup_environment()

    # Lightning calls it in `setup_environment`.
    def _setup_distributed(self) -> None:
        this: Any = self
        this._set_world_ranks()
        assert self.cluster_environment is not None
        backend = distributed.checked_backend(self._process_group_backend)
        self._process_group_backend = backend
        distributed.init_process_group(self.cluster_environment, backend, this._timeout)

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
        """Make the name known to Lightning."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)
