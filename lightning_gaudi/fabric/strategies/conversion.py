"""Which of Fabric's strategies become which of ours."""

from __future__ import annotations

from lightning.fabric.plugins.precision.deepspeed import DeepSpeedPrecision
from lightning.fabric.plugins.precision.fsdp import FSDPPrecision
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.deepspeed import DeepSpeedStrategy
from lightning.fabric.strategies.fsdp import FSDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy

from ...conversion import Forms
from ..precision import HPUDeepSpeedPrecision, HPUFSDPPrecision
from .base import HPUStrategy
from .ddp import HPUDDPStrategy
from .deepspeed import HPUDeepSpeedStrategy
from .fsdp import HPUFSDPStrategy
from .model_parallel import HPUModelParallelStrategy
from .single import SingleHPUStrategy

FORMS = Forms(
    registry=STRATEGY_REGISTRY,
    lightning="lightning.fabric.",
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
