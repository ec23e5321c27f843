"""Offers modules whose matrix products are in fp8, with a scale for each tensor.

Source: the Gaudi PyTorch bridge re-exports the package intel_transformer_engine here (1.19 and
1.24.0), whose sources are not public. What is here follows the sources that the bridge had before
(commit f90046f, of 2024, and those up to it), and the Gaudi documentation, "FP8 Training with
Intel Gaudi Transformer Engine". Tensor and sequence parallelism are left out.
"""

from ....._missing import missing
from . import constants, cpp_extensions, distributed, fp8, module, recipe, utils
from .distributed import checkpoint
from .fp8 import fp8_autocast
from .module import FusedAttention, Linear

__all__ = [
    "FusedAttention",
    "Linear",
    "checkpoint",
    "constants",
    "cpp_extensions",
    "distributed",
    "fp8",
    "fp8_autocast",
    "module",
    "recipe",
    "utils",
]
__getattr__ = missing(__name__)
