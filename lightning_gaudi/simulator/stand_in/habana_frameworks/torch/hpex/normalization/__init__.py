"""Clipping by the global norm, and root-mean-square normalization."""

from ...._missing import missing
from .fused_clip_norm import FusedClipNorm
from .fused_rms_norm import FusedRMSNorm, RmsNormBwdMode

__all__ = ["FusedClipNorm", "FusedRMSNorm", "RmsNormBwdMode"]
__getattr__ = missing(__name__)
