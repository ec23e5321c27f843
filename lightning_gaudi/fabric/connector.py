"""What is patched in Lightning's Fabric; see `seam` for how."""

from __future__ import annotations

from types import ModuleType

from lightning.fabric.accelerators import ACCELERATOR_REGISTRY

from .. import seam
from .accelerator import HPUAccelerator
from .precision import HPUPrecision
from .strategies.conversion import FORMS

ROOM = seam.Room(
    connector="_Connector",
    precision_name="_precision_input",
    precision_plugin="_precision_instance",
    accelerators=ACCELERATOR_REGISTRY,
    accelerator=HPUAccelerator,
    precision=HPUPrecision,
    strategies=FORMS,
)


def patch_connector(module: ModuleType) -> None:
    """Wrap the methods of Fabric's connector and register our names."""
    seam.patch_connector(module, ROOM)
