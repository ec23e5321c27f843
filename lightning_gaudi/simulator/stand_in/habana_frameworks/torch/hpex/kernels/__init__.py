"""Fused kernels."""

from ...._aliases import alias_modules
from ...._missing import missing
from .fused_sdpa import FusedSDPA, gqa_output_reshape

__all__ = ["FusedSDPA", "gqa_output_reshape"]
alias_modules(__name__, FusedSDPA="fused_sdpa")
__getattr__ = missing(__name__)
