"""`RankedHPUStrategy`: one of several processes of a Trainer, each with its card."""

from __future__ import annotations

from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from lightning_gaudi._core import collectives

from ..checkpoint.verify import damage_on_all_ranks
from ..distributed import watching
from ..distributed.strategy import RankedMixin
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher

_Value = TypeVar("_Value")


class RankedHPUStrategy(RankedMixin, HPUStrategy):
    """The base of the Trainer's strategies for several cards, before the one of Lightning's.

    The ranks agree over a group on the CPU on when a signal ends them; see `Ending`.
    """

    script_launcher = HPUScriptLauncher
    spawn_launcher = HPUSpawnLauncher

    def _connect(self) -> None:
        reset_seed()
        self.set_world_ranks()
        super()._connect()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Sets up the model, and lets the watchdog do what a callback asks for."""
        watching.adapt(self.reliability, self._timeout)
        super().setup(trainer)

    @override
    @damage_on_all_ranks()
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Reads a checkpoint; all ranks refuse a damaged one."""
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return checkpoint

    @override
    def reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduces a tensor over the ranks; see `collectives.reduce`. Anything else stays."""
        reduced: Tensor = self._reduce(tensor, group, reduce_op)
        return reduced

    @override
    def on_validation_start(self) -> None:
        """Meets the other ranks, of which one may have more batches left to train on."""
        super().on_validation_start()
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            collectives.meet_for_validation()

    @override
    def on_train_end(self) -> None:
        """Waits for the last agreement on its way, so that none is left at the end."""
        super().on_train_end()
        if self._ending is not None:
            self._ending.finish()

    writes_together = False
    """Whether all ranks write a checkpoint, and not the first one alone."""

    @override
    def _group_for_saving(self) -> Any:
        return collectives.group_apart(self._timeout) if self.writes_together else None

    def _rng_state(self) -> Tensor | list[Tensor]:
        return collectives.gather_objects(super()._rng_state())

    def _of_all_ranks(self, value: _Value) -> list[_Value]:
        return collectives.gather_objects(value)
