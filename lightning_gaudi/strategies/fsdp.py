"""`HPUFSDPStrategy`: models larger than a card, in shards (FSDP)."""

from __future__ import annotations

from lightning.pytorch.strategies import FSDPStrategy

from ..precision import HPUFSDPPrecision
from .parallel import RankedHPUStrategy


class HPUFSDPStrategy(RankedHPUStrategy, FSDPStrategy):
    """Models larger than a card, in shards (FSDP): `Trainer(strategy="hpu_fsdp")`."""

    strategy_name = "hpu_fsdp"

    precision_kind = HPUFSDPPrecision
