"""Moving averages of a model's weights."""

from ...._missing import missing
from .fused_ema import FusedEMA

__all__ = ["FusedEMA"]
__getattr__ = missing(__name__)
