"""Optimizers that update all parameters of a group by one operator."""

from ...._missing import missing
from .fused_adagrad import FusedAdagrad
from .fused_adamw import FusedAdamW
from .fused_lamb import FusedLamb
from .fused_lars import FusedLars
from .fused_resource_apply_momentum import FusedResourceApplyMomentum
from .fused_sgd import FusedSGD
from .mark_step_adam import Adam

__all__ = [
    "Adam",
    "FusedAdagrad",
    "FusedAdamW",
    "FusedLamb",
    "FusedLars",
    "FusedResourceApplyMomentum",
    "FusedSGD",
]
__getattr__ = missing(__name__)
