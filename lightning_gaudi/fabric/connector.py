"""What is patched in Lightning's Fabric; see `seam` for how."""

from __future__ import annotations

from types import ModuleType

from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.utilities import throughput

from .. import seam
from .accelerator import HPUAccelerator
from .strategies.conversion import FORMS
from .throughput import patch_throughput

ROOM = seam.Room(
    connector="_Connector",
    precision_name="_precision_input",
    precision_plugin="_precision_instance",
    accelerators=ACCELERATOR_REGISTRY,
    accelerator=HPUAccelerator,
    strategies=FORMS,
)


def patch_connector(module: ModuleType) -> None:
    """Wrap the methods of Fabric's connector, register our names, and tell the HPU's peaks."""
    seam.patch_connector(module, ROOM)
    patch_throughput(throughput)
