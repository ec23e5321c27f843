"""How Fabric runs on one card and on many.

`selection` says which strategy that is, for the Trainer, too. `base` is what Fabric does on an HPU,
`parallel` what several cards add, `sharded` what models in shards add; each other module is a
strategy of Lightning's.
"""

from typing import TYPE_CHECKING

from lightning_gaudi._core import lazy

if TYPE_CHECKING:
    from .ddp import HPUDDPStrategy, HPUParallelStrategy
    from .deepspeed import HPUDeepSpeedStrategy
    from .fsdp import HPUFSDPStrategy
    from .model_parallel import HPUModelParallelStrategy
    from .single import SingleHPUStrategy
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "HPUDDPStrategy": ".ddp",
            "HPUDeepSpeedStrategy": ".deepspeed",
            "HPUFSDPStrategy": ".fsdp",
            "HPUModelParallelStrategy": ".model_parallel",
            "HPUParallelStrategy": ".ddp",
            "SingleHPUStrategy": ".single",
        },
    )

__all__ = [
    "HPUDDPStrategy",
    "HPUDeepSpeedStrategy",
    "HPUFSDPStrategy",
    "HPUModelParallelStrategy",
    "HPUParallelStrategy",
    "SingleHPUStrategy",
]
