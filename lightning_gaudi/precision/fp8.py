"""Has the Trainer's plugins for fp8, which the vendor's Transformer Engine computes in."""

from __future__ import annotations

from typing import Any

from ..fabric.precision.fp8 import FP8Mixin
from .deepspeed import HPUDeepSpeedPrecision
from .fsdp import HPUFSDPPrecision
from .plugin import HPUPrecisionPlugin

_KINDS = ("HPUFP8Precision", "HPUFSDPFP8Precision", "HPUDeepSpeedFP8Precision")
"""The plugins of all strategies; a checkpoint has their states under the names of their classes."""


class _InTrainer(FP8Mixin):
    """Can continue with the scales of a run that used another strategy."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the scales of another plugin, if the checkpoint has none of this one."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        found = [checkpoint[name] for name in _KINDS if checkpoint.get(name)]
        if type(self).__qualname__ not in checkpoint and found:
            self.load_state_dict({"fp8": found[0]["fp8"]})


class HPUFP8Precision(_InTrainer, HPUPrecisionPlugin):
    """Has linear layers compute in fp8: `Trainer(precision="fp8")`, or with options `plugins=...`.

    It is for one card, DDP and FSDP2; with another strategy it becomes the plugin of that one.
    """


class HPUFSDPFP8Precision(_InTrainer, HPUFSDPPrecision):
    """Has linear layers compute in fp8 with FSDP (FullyShardedDataParallel)."""


class HPUDeepSpeedFP8Precision(_InTrainer, HPUDeepSpeedPrecision):
    """Has linear layers compute in fp8 with DeepSpeed."""
