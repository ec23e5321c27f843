"""Has `HPUDeepSpeedPrecision`, the Trainer's plugin for the precisions of DeepSpeed."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.plugins.precision.deepspeed import DeepSpeedPrecision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from ..fabric.precision.deepspeed import check_precision as check_for_card
from ..fabric.precision.plugin import SHORT, check_device, unsupported

_SUPPORTED = ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")


class HPUDeepSpeedPrecision(DeepSpeedPrecision):
    """Sets how DeepSpeed holds and computes numbers on an HPU: `Trainer(precision=...)`."""

    device = "hpu"
    """The device it computes on."""

    # A class attribute, since an instance of Lightning's own plugin may have become one of ours.
    gradient_clipping: float = 0.0
    """The norm that DeepSpeed clips gradients to, or 0; the strategy sets it."""

    def __init__(self, precision: str = "32-true", device: str = "hpu") -> None:
        """Chooses the precision.

        Args:
            precision: A precision of Fabric's plugin of this name; `"32"` is short for
                `"32-true"`, `"bf16"` for `"bf16-mixed"`, `"16"` for `"16-mixed"`.
            device: `"hpu"`, as lightning-habana's plugins took it.

        Raises:
            MisconfigurationException: DeepSpeed has no such precision, or it is for another device.
        """
        check_device(self, device)
        name: Any = SHORT.get(precision, precision)
        if name not in _SUPPORTED:
            raise MisconfigurationException(unsupported(f"precision={precision!r}", _SUPPORTED))
        super().__init__(name)

    def validate_for_hpu(self) -> None:
        """Checks what the user passed, before it is used on an HPU."""

    @override
    def backward(  # type: ignore[override]
        self, tensor: Tensor, model: pl.LightningModule, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Computes the gradients of a loss that Lightning has divided by the accumulated steps.

        DeepSpeed would divide it once more.
        """
        kwargs.setdefault("scale_wrt_gas", False)
        super().backward(tensor, model, optimizer, *args, **kwargs)

    @override
    def clip_gradients(
        self,
        optimizer: Optimizer,
        clip_val: int | float = 0.0,
        gradient_clip_algorithm: GradClipAlgorithmType = GradClipAlgorithmType.NORM,
    ) -> None:
        """Leaves the clipping to DeepSpeed, which clips when it steps.

        Raises:
            MisconfigurationException: DeepSpeed was not told to clip, or was told another norm.
        """
        if clip_val and clip_val != self.gradient_clipping:
            raise MisconfigurationException(
                f"clip_gradients(gradient_clip_val={clip_val}) has no effect with DeepSpeed, which "
                f"clips to gradient_clipping={self.gradient_clipping} when it steps. Set that: "
                "Trainer(gradient_clip_val=...), or in manual optimization DeepSpeedStrategy("
                "config={'gradient_clipping': ...})."
            )


HPUDeepSpeedPrecisionPlugin = HPUDeepSpeedPrecision
"""The name that lightning-habana has for it."""


def check_precision(plugin: Precision) -> None:
    """Refuses a precision that DeepSpeed cannot compute in on this card; acquires the card.

    Raises:
        MisconfigurationException: The plugin would bypass DeepSpeed, or the card knows no fp16.
    """
    check_for_card(plugin, DeepSpeedPrecision)
