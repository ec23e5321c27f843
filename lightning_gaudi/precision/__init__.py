"""The precisions that Gaudi computes in, for the Trainer."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from .deepspeed import (
        HPUDeepSpeedPrecision as HPUDeepSpeedPrecision,
        HPUDeepSpeedPrecisionPlugin as HPUDeepSpeedPrecisionPlugin,
    )
    from .fsdp import HPUFSDPPrecision as HPUFSDPPrecision
    from .plugin import HPUPrecisionPlugin as HPUPrecisionPlugin
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "HPUDeepSpeedPrecision": ".deepspeed",
            "HPUDeepSpeedPrecisionPlugin": ".deepspeed",
            "HPUFSDPPrecision": ".fsdp",
            "HPUPrecisionPlugin": ".plugin",
        },
    )
