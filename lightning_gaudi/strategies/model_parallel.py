"""`HPUModelParallelStrategy`: FSDP2, tensor parallelism, or both, as the model defines."""

from __future__ import annotations

from lightning.pytorch.strategies import ModelParallelStrategy

from .parallel import RankedHPUStrategy


class HPUModelParallelStrategy(RankedHPUStrategy, ModelParallelStrategy):
    """FSDP2, tensor parallelism, or both, as the model defines."""

    strategy_name = "hpu_model_parallel"
