"""Optimizers that update all parameters of a group by one operator."""

from ...._aliases import alias_modules
from ...._missing import missing
from . import distributed
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
    "distributed",
]
alias_modules(
    __name__,
    FusedAdagrad="fused_adagrad",
    FusedAdamW="fused_adamw",
    FusedLamb="fused_lamb",
    FusedLars="fused_lars",
    FusedResourceApplyMomentum="fused_resource_apply_momentum",
    FusedSGD="fused_sgd",
    MarkstepAdam="mark_step_adam",
    SparseAdagrad="sparse_adagrad",
    SparseSGD="sparse_sgd",
)
__getattr__ = missing(__name__)
