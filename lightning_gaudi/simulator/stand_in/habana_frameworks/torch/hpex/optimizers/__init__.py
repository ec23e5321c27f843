"""Optimizers that update all parameters of a group by one operator."""

from ...._aliases import alias_modules
from ...._missing import missing
from ...._unused import folder_of
from .fused_adamw import FusedAdamW
from .fused_lamb import FusedLamb

__path__.append(folder_of(__name__))

_LATE = {
    "fused_adagrad": ("FusedAdagrad",),
    "fused_lars": ("FusedLars",),
    "fused_resource_apply_momentum": ("FusedResourceApplyMomentum",),
    "fused_sgd": ("FusedSGD",),
    "mark_step_adam": ("Adam",),
}
__all__ = [
    "FusedAdamW",
    "FusedLamb",
    "distributed",
    *(name for names in _LATE.values() for name in names),
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
__getattr__ = missing(__name__, _LATE)
