"""Fused optimizers, averages, normalization and kernels."""

from ..._missing import missing
from ..._unused import folder_of

__path__.append(folder_of(__name__))

from . import kernels, optimizers  # noqa: E402

__all__ = ["experimental", "kernels", "movingavrg", "normalization", "optimizers"]
__getattr__ = missing(__name__)
