"""The precisions that Gaudi computes in, for the Trainer."""

from .deepspeed import HPUDeepSpeedPrecision, HPUDeepSpeedPrecisionPlugin
from .fsdp import HPUFSDPPrecision
from .plugin import HPUPrecisionPlugin

__all__ = [
    "HPUDeepSpeedPrecision",
    "HPUDeepSpeedPrecisionPlugin",
    "HPUFSDPPrecision",
    "HPUPrecisionPlugin",
]
