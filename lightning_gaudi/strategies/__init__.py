"""Strategies of the Trainer, for one card and for many.

`base` holds what all strategies on an HPU share, and `sharded` what those of sharded models add.
`single`, `ddp`, `fsdp`, `model_parallel` and `deepspeed` are one strategy each. What Fabric's
strategies do alike is in `distributed.strategy`, `distributed.sharding` and `deepspeed.strategy`.
The other modules are what a fit takes besides: what guards it (`parts`, `signals`), and how it goes
on exactly where it ended.
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
    # Each is imported on first use, since one needs DeepSpeed and another torch's FSDP.
    __getattr__, __dir__, __all__ = mirror.lazy_names(__name__, exports(in_fabric=False))
