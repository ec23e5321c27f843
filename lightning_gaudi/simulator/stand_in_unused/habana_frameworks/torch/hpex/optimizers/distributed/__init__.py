"""Offers optimizers for torch.distributed.optim, which hands them their gradients."""

from ....._aliases import alias_modules
from ....._missing import missing
from ....._modules import add_eclipsed
from .fused_adamw import FusedAdamW

__all__ = ["FusedAdamW"]
alias_modules(__name__, FusedAdamW="fused_adamw")
__getattr__ = missing(__name__)
add_eclipsed(__name__)
