"""Offers moving averages of a model's weights."""

from ...._aliases import alias_modules
from ...._missing import missing
from ...._modules import add_eclipsed
from .fused_ema import FusedEMA

__all__ = ["FusedEMA"]
alias_modules(__name__, FusedEMA="fused_ema")
__getattr__ = missing(__name__)
add_eclipsed(__name__)
