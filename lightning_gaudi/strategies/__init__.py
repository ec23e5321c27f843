"""How training runs on one card and on many.

`base` is what training on an HPU is, `parallel` what
several cards add, `sharded` what models in shards add; each other module is a strategy of
Lightning's. What Fabric's do alike is in `distributed.strategy`, `distributed.sharding` and
`deepspeed.strategy`.
"""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror
from lightning_gaudi.strategy_table import EXPORTS

if TYPE_CHECKING:
    from .ddp import HPUDDPStrategy as HPUDDPStrategy, HPUParallelStrategy as HPUParallelStrategy
    from .deepspeed import HPUDeepSpeedStrategy as HPUDeepSpeedStrategy
    from .fsdp import HPUFSDPStrategy as HPUFSDPStrategy
    from .model_parallel import HPUModelParallelStrategy as HPUModelParallelStrategy
    from .single import SingleHPUStrategy as SingleHPUStrategy
else:
    # Each with what it needs, which is DeepSpeed for one and torch's FSDP for another.
    __getattr__, __dir__, __all__ = mirror.lazy_names(__name__, EXPORTS)
