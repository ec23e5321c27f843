"""Which of the Trainer's strategies become which of ours."""

from __future__ import annotations

from lightning.pytorch.plugins.precision.deepspeed import DeepSpeedPrecision
from lightning.pytorch.plugins.precision.fsdp import FSDPPrecision
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    StrategyRegistry,
)

from ..conversion import Forms
from ..precision import HPUDeepSpeedPrecision, HPUFSDPPrecision
from .base import HPUStrategy
from .ddp import HPUDDPStrategy
from .deepspeed import HPUDeepSpeedStrategy
from .fsdp import HPUFSDPStrategy
from .model_parallel import HPUModelParallelStrategy
from .single import SingleHPUStrategy

FORMS = Forms(
    registry=StrategyRegistry,
    lightning="lightning.pytorch.",
    base=HPUStrategy,
    single=SingleHPUStrategy,
    ddp=HPUDDPStrategy,
    of={
        DDPStrategy: HPUDDPStrategy,
        DeepSpeedStrategy: HPUDeepSpeedStrategy,
        FSDPStrategy: HPUFSDPStrategy,
        ModelParallelStrategy: HPUModelParallelStrategy,
        SingleDeviceStrategy: SingleHPUStrategy,
    },
    precisions={DeepSpeedPrecision: HPUDeepSpeedPrecision, FSDPPrecision: HPUFSDPPrecision},
)
