"""The vendor's internals; Gaudi code reads its configuration from here."""

from ..._missing import missing
from . import bridge_config, fuse_conv_bn

__all__ = ["bridge_config", "fuse_conv_bn"]
__getattr__ = missing(__name__)
