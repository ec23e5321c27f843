"""How training runs on one card, and later on many."""

from .conversion import to_hpu_strategy
from .single import SingleHPUStrategy

__all__ = ["SingleHPUStrategy", "to_hpu_strategy"]
