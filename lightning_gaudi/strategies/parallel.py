"""`RankedHPUStrategy`: one of several processes of a Trainer, each with its card."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_prefixed_message
from torch import Tensor
from typing_extensions import override

from .. import distributed
from ..conversion import check_start_method
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class RankedHPUStrategy(HPUStrategy, ParallelStrategy):
    """The base of our strategies for several cards: HCCL between the cards, gloo between the hosts.

    It comes before the one of Lightning's that it is combined with, as in `class
    HPUDDPStrategy(RankedHPUStrategy, DDPStrategy)`: what it overrides holds for all of them.

    In a training step it synchronizes nothing with the host: reductions go without a barrier, and
    the ranks agree on SIGTERM over a group on the CPU.
    """

    strategy_name: str

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _sigterm: _SigtermAgreement | None = None
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

    def _connect(self) -> None:
        """Connect all ranks over HCCL."""
        reset_seed()
        this: Any = self
        this.set_world_ranks()
        assert self.cluster_environment is not None
        backend = distributed.checked_backend(self._process_group_backend)
        self._process_group_backend = backend
        distributed.init_process_group(self.cluster_environment, backend, this._timeout)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Set up the model, and have the ranks agree on SIGTERM without the device."""
        super().setup(trainer)
        self._sigterm = _SigtermAgreement(trainer)

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
    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduce a tensor over the ranks; see `distributed.reduce`. Anything else stays."""
        if not isinstance(tensor, Tensor):
            return tensor
        return distributed.reduce(tensor, group, reduce_op)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """What all ranks (or any of them) decided; the devices work on."""
        return distributed.decide(decision, all_ranks=all)

    @override
    def on_train_end(self) -> None:
        """Wait for the last agreement on its way, so that none is left at the end."""
        super().on_train_end()
        if self._sigterm is not None:
            self._sigterm.finish()

    @override
    def _rng_state(self) -> Tensor | list[Tensor]:
        return distributed.gather_objects(super()._rng_state())

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Make the name known to Lightning."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)


class _SigtermAgreement:
    """All ranks stop before the same step, whichever of them got a SIGTERM.

    Lightning asks the device of every rank before each step whether rank 0 got one, and the handler
    of the signal takes part in that broadcast: both are replaced, in this Trainer alone.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._has_signal = False
        self._agreement = distributed.StopAgreement()
        connector, loop = trainer._signal_connector, trainer.fit_loop.epoch_loop
        connector._sigterm_notifier_fn = self._note  # type: ignore[assignment,method-assign]
        loop._broadcast_sigterm_tensor = self._agree  # type: ignore[method-assign]

    def finish(self) -> None:
        """Wait for the agreement on its way."""
        self._agreement.finish()

    def _note(self, signum: Any, frame: Any) -> None:
        log.info(rank_prefixed_message(f"Received SIGTERM: {signum}", self._trainer.global_rank))
        launcher = self._trainer.strategy.launcher
        if launcher is not None and not self._has_signal:
            launcher.kill(signum)
        self._has_signal = True

    def _agree(self) -> None:
        if self._agreement.agree(wants_to_stop=self._has_signal):
            self._trainer._signal_connector.received_sigterm = True
            raise SIGTERMException
