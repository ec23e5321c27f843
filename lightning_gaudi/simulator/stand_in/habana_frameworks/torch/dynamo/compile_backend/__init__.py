"""The compiler backend of the vendor's package."""

from ...._missing import missing
from ...internal import bridge_config
from . import backends

__all__ = ["backends"]
if bridge_config.get_pt_hpu_enable_compiled_autograd():
    from .experimental import enable_compiled_autograd

    enable_compiled_autograd()

__getattr__ = missing(__name__)
