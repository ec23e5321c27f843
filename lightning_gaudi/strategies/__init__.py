"""How training runs on one card and on many."""

from .conversion import to_hpu_strategy
from .ddp import HPUDDPStrategy, HPUParallelStrategy
from .single import SingleHPUStrategy

__all__ = [
    "HPUDDPStrategy",
    "HPUParallelStrategy",
    "SingleHPUStrategy",
    "to_hpu_strategy",
]
