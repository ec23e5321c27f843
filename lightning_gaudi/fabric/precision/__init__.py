"""The precisions that Gaudi computes in, for Fabric."""

from .deepspeed import HPUDeepSpeedPrecision
from .fsdp import HPUFSDPPrecision
from .plugin import HPUPrecision, to_hpu_precision, unsupported

__all__ = [
    "HPUDeepSpeedPrecision",
    "HPUFSDPPrecision",
    "HPUPrecision",
    "to_hpu_precision",
    "unsupported",
]
