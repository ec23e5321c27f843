"""`RankedHPUStrategy`: one of several processes of Fabric, each with its card."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from lightning_gaudi._core import collectives

from ...checkpoint.verify import damage_on_all_ranks
from ...distributed.strategy import RankedMixin
from .base import HPUStrategy
from .launchers import HPUScriptLauncher, HPUSpawnLauncher


class RankedHPUStrategy(RankedMixin, HPUStrategy):
    """The base of Fabric's strategies for several cards, before the one of Lightning's."""

    script_launcher = HPUScriptLauncher
    spawn_launcher = HPUSpawnLauncher

    # Lightning calls it in `setup_environment`.
    @override
    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        self._connect()

    @override
    @damage_on_all_ranks()
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads a checkpoint; all ranks refuse a damaged one."""
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return checkpoint

    @override
    def _of_all_ranks(self, value: Any) -> list[Any]:
        return collectives.gather_objects(value)

    @override
    def all_reduce(
        self, tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduces a tensor over the ranks; see `collectives.reduce`. Anything else stays."""
        reduced: Tensor = self._reduce(tensor, group, reduce_op)
        return reduced
