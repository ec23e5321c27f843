"""Which of Fabric's strategies become which of ours."""

from __future__ import annotations

from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy

from ...conversion import Forms
from .base import HPUStrategy
from .ddp import HPUDDPStrategy
from .single import SingleHPUStrategy

FORMS = Forms(
    registry=STRATEGY_REGISTRY,
    lightning="lightning.fabric.",
    base=HPUStrategy,
    single=SingleHPUStrategy,
    ddp=HPUDDPStrategy,
    of={DDPStrategy: HPUDDPStrategy, SingleDeviceStrategy: SingleHPUStrategy},
)
