"""`HPUDeepSpeedStrategy`: models larger than a card, through DeepSpeed's ZeRO."""

from __future__ import annotations

from lightning.fabric.strategies.deepspeed import DeepSpeedStrategy

from ..precision import HPUDeepSpeedPrecision
from .parallel import RankedHPUStrategy


class HPUDeepSpeedStrategy(RankedHPUStrategy, DeepSpeedStrategy):
    """Models larger than a card, through DeepSpeed's ZeRO: `Fabric(strategy="hpu_deepspeed")`."""

    strategy_name = "hpu_deepspeed"

    precision_kind = HPUDeepSpeedPrecision
