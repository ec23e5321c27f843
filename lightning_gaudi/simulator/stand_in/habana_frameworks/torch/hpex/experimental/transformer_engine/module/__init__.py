"""Offers the modules."""

from ......_missing import missing
from .attention import FusedAttention
from .base import TransformerEngineBaseModule
from .linear import Linear

__all__ = ["FusedAttention", "Linear", "TransformerEngineBaseModule"]
__getattr__ = missing(__name__)
