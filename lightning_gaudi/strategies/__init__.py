"""How training runs on one card and on many."""

from .ddp import HPUDDPStrategy, HPUParallelStrategy
from .deepspeed import HPUDeepSpeedStrategy
from .fsdp import HPUFSDPStrategy
from .model_parallel import HPUModelParallelStrategy
from .single import SingleHPUStrategy

__all__ = [
    "HPUDDPStrategy",
    "HPUDeepSpeedStrategy",
    "HPUFSDPStrategy",
    "HPUModelParallelStrategy",
    "HPUParallelStrategy",
    "SingleHPUStrategy",
]
