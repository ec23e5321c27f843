"""`HPUDeepSpeedPrecision`: the precisions that Gaudi computes in, with DeepSpeed."""

from __future__ import annotations

from lightning.fabric.plugins.precision.deepspeed import DeepSpeedPrecision


class HPUDeepSpeedPrecision(DeepSpeedPrecision):
    """How numbers are held and computed on an HPU with DeepSpeed."""

    def become_hpu(self) -> None:
        """Check what the user passed, before it is used on an HPU."""
