"""Offers clipping by the global norm, and root-mean-square normalization."""

from ...._aliases import alias_modules
from ...._missing import missing
from ...._modules import add_eclipsed
from .fused_clip_norm import FusedClipNorm
from .fused_rms_norm import FusedRMSNorm, RmsNormBwdMode

__all__ = ["FusedClipNorm", "FusedRMSNorm", "RmsNormBwdMode"]
alias_modules(__name__, FusedClipNorm="fused_clip_norm", FusedRMSNorm="fused_rms_norm")
__getattr__ = missing(__name__)
add_eclipsed(__name__)
