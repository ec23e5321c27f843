"""Fused kernels."""

from ...._missing import missing
from .fused_sdpa import FusedSDPA

__all__ = ["FusedSDPA"]
__getattr__ = missing(__name__)
