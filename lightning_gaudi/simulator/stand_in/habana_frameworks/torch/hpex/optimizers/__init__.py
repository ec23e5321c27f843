"""Optimizers that update all parameters of a group by one operator."""

from ...._missing import missing
from .fused_adamw import FusedAdamW
from .fused_lamb import FusedLamb

__all__ = ["FusedAdamW", "FusedLamb"]
__getattr__ = missing(__name__)
