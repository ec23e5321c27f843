"""Exports the plugins of the precisions that a Gaudi computes in, for the Trainer."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from .bitsandbytes import HPUBitsandbytesPrecision as HPUBitsandbytesPrecision
    from .deepspeed import (
        HPUDeepSpeedPrecision as HPUDeepSpeedPrecision,
        HPUDeepSpeedPrecisionPlugin as HPUDeepSpeedPrecisionPlugin,
    )
    from .fp8 import (
        HPUDeepSpeedFP8Precision as HPUDeepSpeedFP8Precision,
        HPUFP8Precision as HPUFP8Precision,
        HPUFSDPFP8Precision as HPUFSDPFP8Precision,
    )
    from .fsdp import HPUFSDPPrecision as HPUFSDPPrecision
    from .plugin import HPUPrecisionPlugin as HPUPrecisionPlugin
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "HPUBitsandbytesPrecision": ".bitsandbytes",
            "HPUDeepSpeedFP8Precision": ".fp8",
            "HPUDeepSpeedPrecision": ".deepspeed",
            "HPUDeepSpeedPrecisionPlugin": ".deepspeed",
            "HPUFP8Precision": ".fp8",
            "HPUFSDPFP8Precision": ".fp8",
            "HPUFSDPPrecision": ".fsdp",
            "HPUPrecisionPlugin": ".plugin",
        },
    )
