"""The vendor's experimental extensions."""

from ...._missing import missing
from . import transformer_engine

__all__ = ["transformer_engine"]
__getattr__ = missing(__name__)
