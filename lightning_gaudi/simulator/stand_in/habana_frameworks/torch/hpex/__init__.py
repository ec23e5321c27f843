"""Fused optimizers, averages, normalization and kernels."""

from ..._missing import missing
from . import experimental, kernels, movingavrg, normalization, optimizers

__all__ = ["experimental", "kernels", "movingavrg", "normalization", "optimizers"]
__getattr__ = missing(__name__)
