"""`HPUFP8Precision`: linear layers in fp8, by the vendor's Transformer Engine, for the Trainer."""

from __future__ import annotations

from typing import Any

from ..fabric.precision.fp8 import FP8Mixin
from .deepspeed import HPUDeepSpeedPrecision
from .fsdp import HPUFSDPPrecision
from .plugin import HPUPrecisionPlugin

_KINDS = ("HPUFP8Precision", "HPUFSDPFP8Precision", "HPUDeepSpeedFP8Precision")
"""Plugins of whichever strategy; a checkpoint has their states by the names of their classes."""


class _InTrainer(FP8Mixin):
    """Goes on with the scales of a run with another strategy."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the scales of another plugin, where the checkpoint has none of this one."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        found = [checkpoint[name] for name in _KINDS if checkpoint.get(name)]
        if type(self).__qualname__ not in checkpoint and found:
            self.load_state_dict({"fp8": found[0]["fp8"]})


class HPUFP8Precision(_InTrainer, HPUPrecisionPlugin):
    """Linear layers in fp8: `Trainer(precision="fp8")`, or with options `Trainer(plugins=...)`.

    For one card, DDP, FSDP2; with another strategy it becomes that strategy's.
    """


class HPUFSDPFP8Precision(_InTrainer, HPUFSDPPrecision):
    """Linear layers in fp8, with FSDP (FullyShardedDataParallel)."""


class HPUDeepSpeedFP8Precision(_InTrainer, HPUDeepSpeedPrecision):
    """Linear layers in fp8, with DeepSpeed."""
