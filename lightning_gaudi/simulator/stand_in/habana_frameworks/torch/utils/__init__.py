"""Utilities of the vendor's package."""

from ..._missing import missing
from . import debug, event_dispatcher, experimental, internal, library_loader

__all__ = ["debug", "event_dispatcher", "experimental", "internal", "library_loader"]
__getattr__ = missing(__name__)
