"""Fabric on Intel Gaudi: `Fabric(accelerator="hpu")`."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from ..checkpoint import HPUCheckpointIO as HPUCheckpointIO
    from .accelerator import HPUAccelerator as HPUAccelerator
    from .precision import (
        HPUBitsandbytesPrecision as HPUBitsandbytesPrecision,
        HPUDeepSpeedPrecision as HPUDeepSpeedPrecision,
        HPUFSDPPrecision as HPUFSDPPrecision,
        HPUPrecision as HPUPrecision,
    )
    from .strategies import (
        HPUDDPStrategy as HPUDDPStrategy,
        HPUDeepSpeedStrategy as HPUDeepSpeedStrategy,
        HPUFSDPStrategy as HPUFSDPStrategy,
        HPUModelParallelStrategy as HPUModelParallelStrategy,
        HPUParallelStrategy as HPUParallelStrategy,
        SingleHPUStrategy as SingleHPUStrategy,
    )
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "HPUAccelerator": ".accelerator",
            "HPUBitsandbytesPrecision": ".precision",
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
