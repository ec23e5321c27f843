"""Fused optimizers, normalization and kernels."""

from ..._missing import missing
from . import experimental, kernels, normalization, optimizers

__all__ = ["experimental", "kernels", "normalization", "optimizers"]
__getattr__ = missing(__name__)
