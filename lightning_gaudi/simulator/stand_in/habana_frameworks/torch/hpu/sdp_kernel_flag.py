"""Offers the switch for FusedSDPA's recomputing where the vendor has it since 2025."""

from ..._missing import missing
from .switches import enable_recompute_sdp, recompute_sdp_enabled, sdp_kernel

__all__ = ["enable_recompute_sdp", "recompute_sdp_enabled", "sdp_kernel"]
__getattr__ = missing(__name__)
