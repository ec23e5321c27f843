"""`RankedHPUStrategy`: one of several processes of a Trainer, each with its card."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_prefixed_message
from torch import Tensor
from typing_extensions import override

from lightning_gaudi._core import collectives
from lightning_gaudi._patches.apply import replace

from ..checkpoint.verify import damage_on_all_ranks
from ..distributed.strategy import RankedMixin
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


class RankedHPUStrategy(RankedMixin, HPUStrategy):
    """The base of the Trainer's strategies for several cards, before the one of Lightning's.

    The ranks agree on SIGTERM over a group on the CPU.
    """

    script_launcher = HPUScriptLauncher
    spawn_launcher = HPUSpawnLauncher

    # A class attribute, since an instance of Lightning's own strategy may have become one of ours.
    _sigterm: _SigtermAgreement | None = None

    def _connect(self) -> None:
        reset_seed()
        self.set_world_ranks()
        super()._connect()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Set up the model, and have the ranks agree on SIGTERM without the device."""
        super().setup(trainer)
        self._sigterm = _SigtermAgreement(trainer)

    @override
    @damage_on_all_ranks()
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint; all ranks refuse a damaged one."""
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return checkpoint

    @override
    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduce a tensor over the ranks; see `collectives.reduce`. Anything else stays."""
        reduced: Tensor = self._reduce(tensor, group, reduce_op)
        return reduced

    @override
    def on_train_end(self) -> None:
        """Wait for the last agreement on its way, so that none is left at the end."""
        super().on_train_end()
        if self._sigterm is not None:
            self._sigterm.finish()

    def _rng_state(self) -> Tensor | list[Tensor]:
        return collectives.gather_objects(super()._rng_state())

    def _of_all_ranks(self, value: _Value) -> list[_Value]:
        return collectives.gather_objects(value)


class _SigtermAgreement:
    """All ranks stop before the same step, whichever of them got a SIGTERM.

    Lightning asks the device of every rank before each step whether rank 0 got one, and the handler
    of the signal takes part in that broadcast: both are replaced, in this Trainer alone.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._has_signal = False
        self._agreement = collectives.StopAgreement()
        connector, loop = trainer._signal_connector, trainer.fit_loop.epoch_loop
        replace("sigterm", connector, "_sigterm_notifier_fn", self._note)
        replace("sigterm", loop, "_broadcast_sigterm_tensor", self._agree)

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
        if self._trainer.fit_loop._should_accumulate():
            return  # to stop here would lose gradients
        if self._agreement.agree(wants_to_stop=self._has_signal):
            self._trainer._signal_connector.received_sigterm = True
            raise SIGTERMException
