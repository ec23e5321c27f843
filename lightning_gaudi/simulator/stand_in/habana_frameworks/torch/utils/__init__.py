"""Utilities of the vendor's package."""

from ..._missing import missing
from . import debug, experimental, internal, library_loader

__all__ = ["debug", "experimental", "internal", "library_loader"]
__getattr__ = missing(__name__)
