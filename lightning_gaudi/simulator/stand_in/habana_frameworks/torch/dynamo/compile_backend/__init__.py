"""The compiler backend of the vendor's package."""

from ...._missing import missing
from . import backends

__all__ = ["backends"]
__getattr__ = missing(__name__)
