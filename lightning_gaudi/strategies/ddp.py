"""`HPUDDPStrategy`: the same model on several cards, each with its part of the batch."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_prefixed_message
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_gaudi.tied_weights import kept_tied

from .. import distributed
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class HPUDDPStrategy(DDPStrategy, HPUStrategy):
    """Data-parallel training over HCCL: `Trainer(strategy="hpu_ddp")`, and what `"auto"` gives.

    Every `ddp` name and `DDPStrategy` instance becomes one on accelerator "hpu" and keeps its
    arguments. It takes those of Lightning's `DDPStrategy`; DistributedDataParallel gets the
    vendor's settings (see `distributed.wrap`) where the user has none.

    In a training step it synchronizes nothing with the host: reductions go without a barrier, and
    the ranks agree on SIGTERM over a group on the CPU.
    """

    strategy_name = "hpu_ddp"

    _sigterm: _SigtermAgreement | None = None

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
    def setup_distributed(self) -> None:
        """Connect all ranks over HCCL."""
        reset_seed()
        self.set_world_ranks()
        assert self.cluster_environment is not None
        self._process_group_backend = distributed.checked_backend(self._process_group_backend)
        distributed.init_process_group(
            self.cluster_environment, self._process_group_backend, self._timeout
        )

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Move and wrap the model, and have the ranks agree on SIGTERM without the device."""
        super().setup(trainer)
        self._sigterm = _SigtermAgreement(trainer)

    @override
    def determine_ddp_device_ids(self) -> None:
        """None: DistributedDataParallel takes the device from the model."""

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        return distributed.wrap(model, self._ddp_kwargs)

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
    def model_to_device(self) -> None:
        """Move the model, and tie again the weights that were tied before."""
        with kept_tied(self.model):
            super().model_to_device()

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cut the graph after backward."""
        super().post_backward(closure_loss)
        self._end_of_graph()

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
    def on_validation_start(self) -> None:
        """Evaluate the same model on all ranks: with the buffers of rank 0."""
        super().on_validation_start()
        model = self.model
        if isinstance(model, DistributedDataParallel) and not model.broadcast_buffers:
            distributed.sync_buffers(model)

    @override
    def on_train_end(self) -> None:
        """Wait for the last agreement on its way, so that none is left at the end."""
        super().on_train_end()
        if self._sigterm is not None:
            self._sigterm.finish()

    @override
    def _rng_state(self) -> list[Tensor]:
        return distributed.gather_objects(super()._rng_state())

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Make the names known to Lightning; `"hpu_parallel"` is the one of older projects."""
        for name in (cls.strategy_name, "hpu_parallel"):
            strategy_registry.register(name, cls, description=cls.__name__)


HPUParallelStrategy = HPUDDPStrategy
"""The name of lightning-habana and of Lightning before 2.5.6."""


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
