"""The precisions that Gaudi computes in, for Fabric."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from .deepspeed import HPUDeepSpeedPrecision as HPUDeepSpeedPrecision
    from .fsdp import HPUFSDPPrecision as HPUFSDPPrecision
    from .plugin import HPUPrecision as HPUPrecision
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "HPUDeepSpeedPrecision": ".deepspeed",
            "HPUFSDPPrecision": ".fsdp",
            "HPUPrecision": ".plugin",
        },
    )
