"""`HPUAccelerator`: Fabric's, with the figures that the Trainer asks for."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch.accelerators import Accelerator
from typing_extensions import override

from lightning_gaudi._core import vendor

from .fabric.accelerator import HPUAccelerator as FabricHPUAccelerator


class HPUAccelerator(FabricHPUAccelerator, Accelerator):
    """An Intel Gaudi card, in PyTorch's words an HPU: `Trainer(accelerator="hpu")`."""

    @override
    def get_device_stats(self, device: _DEVICE) -> dict[str, Any]:
        """Returns the card's memory figures by the vendor's names; see `vendor.memory_stats`."""
        return vendor.memory_stats()
