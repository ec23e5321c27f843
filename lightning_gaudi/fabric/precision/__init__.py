"""The precisions that Gaudi computes in, for Fabric."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import lazy

if TYPE_CHECKING:
    from .deepspeed import HPUDeepSpeedPrecision
    from .fsdp import HPUFSDPPrecision
    from .plugin import HPUPrecision
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "HPUDeepSpeedPrecision": ".deepspeed",
            "HPUFSDPPrecision": ".fsdp",
            "HPUPrecision": ".plugin",
        },
    )

__all__ = ["HPUDeepSpeedPrecision", "HPUFSDPPrecision", "HPUPrecision"]
