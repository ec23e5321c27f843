"""The precisions that Gaudi computes in, for the Trainer."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import lazy

if TYPE_CHECKING:
    from .deepspeed import HPUDeepSpeedPrecision, HPUDeepSpeedPrecisionPlugin
    from .fsdp import HPUFSDPPrecision
    from .plugin import HPUPrecisionPlugin
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "HPUDeepSpeedPrecision": ".deepspeed",
            "HPUDeepSpeedPrecisionPlugin": ".deepspeed",
            "HPUFSDPPrecision": ".fsdp",
            "HPUPrecisionPlugin": ".plugin",
        },
    )

__all__ = [
    "HPUDeepSpeedPrecision",
    "HPUDeepSpeedPrecisionPlugin",
    "HPUFSDPPrecision",
    "HPUPrecisionPlugin",
]
