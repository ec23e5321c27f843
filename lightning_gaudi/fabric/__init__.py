"""Fabric on Intel Gaudi: `Fabric(accelerator="hpu")`."""

from ..checkpoint import HPUCheckpointIO
from .accelerator import HPUAccelerator
from .precision import HPUPrecision
from .strategies import HPUDDPStrategy, HPUParallelStrategy, SingleHPUStrategy

__all__ = [
    "HPUAccelerator",
    "HPUCheckpointIO",
    "HPUDDPStrategy",
    "HPUParallelStrategy",
    "HPUPrecision",
    "SingleHPUStrategy",
]
