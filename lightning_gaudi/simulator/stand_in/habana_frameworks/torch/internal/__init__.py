"""Offers the vendor's internals, from which Gaudi code reads its configuration."""

from ..._missing import missing
from . import bridge_config, fuse_conv_bn

__all__ = ["bridge_config", "fuse_conv_bn"]
__getattr__ = missing(__name__)
