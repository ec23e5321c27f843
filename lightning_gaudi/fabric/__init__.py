"""Fabric on Intel Gaudi: `Fabric(accelerator="hpu")`."""

from ..checkpoint import HPUCheckpointIO
from .accelerator import HPUAccelerator
from .precision import HPUDeepSpeedPrecision, HPUFSDPPrecision, HPUPrecision
from .strategies import (
    HPUDDPStrategy,
    HPUDeepSpeedStrategy,
    HPUFSDPStrategy,
    HPUModelParallelStrategy,
    HPUParallelStrategy,
    SingleHPUStrategy,
)

__all__ = [
    "HPUAccelerator",
    "HPUCheckpointIO",
    "HPUDDPStrategy",
    "HPUDeepSpeedPrecision",
    "HPUDeepSpeedStrategy",
    "HPUFSDPPrecision",
    "HPUFSDPStrategy",
    "HPUModelParallelStrategy",
    "HPUParallelStrategy",
    "HPUPrecision",
    "SingleHPUStrategy",
]
