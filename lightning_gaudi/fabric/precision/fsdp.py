"""`HPUFSDPPrecision`: the precisions that Gaudi computes in, with FSDP."""

from __future__ import annotations

from lightning.fabric.plugins.precision.fsdp import FSDPPrecision


class HPUFSDPPrecision(FSDPPrecision):
    """How numbers are held and computed on an HPU with FSDP."""

    def become_hpu(self) -> None:
        """Check what the user passed, before it is used on an HPU."""
