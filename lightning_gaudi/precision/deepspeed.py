"""`HPUDeepSpeedPrecision`: the precisions that Gaudi computes in, with DeepSpeed."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision.deepspeed import DeepSpeedPrecision
from torch import Tensor
from typing_extensions import override


class HPUDeepSpeedPrecision(DeepSpeedPrecision):
    """How numbers are held and computed on an HPU with DeepSpeed."""

    def become_hpu(self) -> None:
        """Check what the user passed, before it is used on an HPU."""

    @override
    def backward(  # type: ignore[override]
        self, tensor: Tensor, model: pl.LightningModule, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Compute the gradients of a loss that Lightning has divided by the accumulated steps.

        DeepSpeed would divide it once more.
        """
        kwargs.setdefault("scale_wrt_gas", False)
        super().backward(tensor, model, optimizer, *args, **kwargs)
