"""Fabric on Intel Gaudi: `Fabric(accelerator="hpu")`."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import lazy

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "HPUAccelerator": ".accelerator",
            "HPUCheckpointIO": "..checkpoint",
            "HPUDDPStrategy": ".strategies",
            "HPUDeepSpeedPrecision": ".precision",
            "HPUDeepSpeedStrategy": ".strategies",
            "HPUFSDPPrecision": ".precision",
            "HPUFSDPStrategy": ".strategies",
            "HPUModelParallelStrategy": ".strategies",
            "HPUParallelStrategy": ".strategies",
            "HPUPrecision": ".precision",
            "SingleHPUStrategy": ".strategies",
        },
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
