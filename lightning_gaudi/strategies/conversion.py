"""Which of the Trainer's strategies become which of ours."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry

from ..conversion import Forms
from .base import HPUStrategy
from .ddp import HPUDDPStrategy
from .single import SingleHPUStrategy

FORMS = Forms(
    registry=StrategyRegistry,
    lightning="lightning.pytorch.",
    base=HPUStrategy,
    single=SingleHPUStrategy,
    ddp=HPUDDPStrategy,
    of={DDPStrategy: HPUDDPStrategy, SingleDeviceStrategy: SingleHPUStrategy},
)
