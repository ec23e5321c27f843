"""`HPUPrecisionPlugin`: the precisions that Gaudi computes in, for the Trainer."""

from __future__ import annotations

from lightning.pytorch.plugins.precision import Precision
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core.fused_clipping import clip_norm

from ..fabric.precision.plugin import HPUPrecision


class HPUPrecisionPlugin(HPUPrecision, Precision):
    """How numbers are held and computed on an HPU: `Trainer(precision=...)`.

    The forward of a step and its loss are computed as `HPUPrecision` says.
    """

    @override
    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip by the norm of the optimizer's gradients, by the vendor's kernel where it can."""
        clip_norm(self.main_params(optimizer), clip_val)
