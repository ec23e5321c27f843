"""Has `HPUBitsandbytesPrecision`, which keeps frozen weights in four bits, for the Trainer."""

from __future__ import annotations

from lightning.pytorch.plugins.precision.bitsandbytes import BitsandbytesPrecision
from torch.optim import Optimizer
from typing_extensions import override

from ..fabric.precision.bitsandbytes import HPUQuantizedPrecision


class HPUBitsandbytesPrecision(HPUQuantizedPrecision, BitsandbytesPrecision):
    """Keeps frozen weights in four bits: `Trainer(plugins=BitsandbytesPrecision("nf4-dq"))`.

    See `HPUQuantizedPrecision`.
    """

    @override
    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clips by the norm of the optimizer's gradients, by the vendor's kernel where it can."""
        from lightning_gaudi._core.precision.fused_clipping import clip_norm

        clip_norm(self.main_params(optimizer), clip_val)
