"""`HPUModelParallelStrategy`: FSDP2, tensor parallelism, or both, as the model defines."""

from __future__ import annotations

from lightning.pytorch.strategies import ModelParallelStrategy
from typing_extensions import override

from lightning_gaudi.tied_weights import kept_tied

from .parallel import RankedHPUStrategy


class HPUModelParallelStrategy(RankedHPUStrategy, ModelParallelStrategy):
    """FSDP2, tensor parallelism, or both, as the model defines."""

    strategy_name = "hpu_model_parallel"

    def _setup_distributed(self) -> None:
        self._connect()

    @override
    def model_to_device(self) -> None:
        """Move what is not sharded, with its tied weights tied."""
        with kept_tied(self.model):
            super().model_to_device()
