"""The vendor's internals; Gaudi code reads its configuration from here."""

from ..._missing import missing
from . import bridge_config

__all__ = ["bridge_config"]
__getattr__ = missing(__name__)
