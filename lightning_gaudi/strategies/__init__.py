"""How training runs on one card and on many."""

from .ddp import HPUDDPStrategy, HPUParallelStrategy
from .single import SingleHPUStrategy

__all__ = [
    "HPUDDPStrategy",
    "HPUParallelStrategy",
    "SingleHPUStrategy",
]
