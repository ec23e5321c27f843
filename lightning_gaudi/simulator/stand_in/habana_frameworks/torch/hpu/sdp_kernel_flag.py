"""Whether FusedSDPA recomputes; the module that the vendor keeps it in since 2025."""

from ..._missing import missing
from .switches import enable_recompute_sdp, recompute_sdp_enabled, sdp_kernel

__all__ = ["enable_recompute_sdp", "recompute_sdp_enabled", "sdp_kernel"]
__getattr__ = missing(__name__)
