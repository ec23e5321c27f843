"""Strategies of Fabric, for one card and for many.

`selection` chooses the strategy, for the Trainer, too. `base` holds what all strategies on an HPU
share, `sharded` what those of sharded models add, and `launchers` how ranks are started. The other
modules are one strategy each.
"""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror
from lightning_gaudi.strategy_table import exports

if TYPE_CHECKING:
    from .ddp import HPUDDPStrategy as HPUDDPStrategy, HPUParallelStrategy as HPUParallelStrategy
    from .deepspeed import HPUDeepSpeedStrategy as HPUDeepSpeedStrategy
    from .fsdp import HPUFSDPStrategy as HPUFSDPStrategy
    from .model_parallel import HPUModelParallelStrategy as HPUModelParallelStrategy
    from .single import SingleHPUStrategy as SingleHPUStrategy
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(__name__, exports(in_fabric=True))
