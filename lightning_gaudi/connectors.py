"""What is patched in Lightning's Trainer; see `seam` for how its connector is."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning_utilities.core.rank_zero import rank_zero_info

from . import seam
from .accelerator import HPUAccelerator
from .checkpoint import HPUCheckpointIO
from .precision import HPUPrecisionPlugin
from .strategies import HPUParallelStrategy, SingleHPUStrategy
from .strategies.conversion import FORMS

ROOM = seam.Room(
    connector="_AcceleratorConnector",
    precision_name="_precision_flag",
    precision_plugin="_precision_plugin_flag",
    accelerators=AcceleratorRegistry,
    accelerator=HPUAccelerator,
    strategies=FORMS,
)

_OLD_NAMES: dict[str, type] = {
    "HPUAccelerator": HPUAccelerator,
    "HPUCheckpointIO": HPUCheckpointIO,
    "HPUParallelStrategy": HPUParallelStrategy,
    "HPUPrecisionPlugin": HPUPrecisionPlugin,
    "SingleHPUStrategy": SingleHPUStrategy,
}
"""What Lightning had until 2.5.5 and has only stubs of since."""


def patch_connector(module: ModuleType) -> None:
    """Wrap the methods of the Trainer's connector and register our names."""
    seam.patch_connector(module, ROOM)


def patch_graveyard(module: ModuleType) -> None:
    """Put our classes where Lightning left stubs for them, and add the HPU to the device log.

    The last module that Lightning imports, so that all others are there.
    """
    from lightning.pytorch import accelerators, plugins, strategies
    from lightning.pytorch.callbacks import throughput_monitor
    from lightning.pytorch.plugins import io, precision
    from lightning.pytorch.trainer import setup

    from .fabric.throughput import patch_throughput
    from .profiler import extend_trainer_setup

    places = (module, accelerators, strategies, plugins, io, precision)
    for name, ours in _OLD_NAMES.items():
        stub = getattr(module, name, None)
        for place in places:
            if stub is not None and getattr(place, name, None) is stub:
                setattr(place, name, ours)
    _extend_device_log(setup)
    extend_trainer_setup(setup)
    patch_throughput(throughput_monitor)


def _extend_device_log(setup: ModuleType) -> None:
    original = getattr(setup, "_log_device_info", None)
    if original is None or hasattr(original, seam.MARK):
        return

    @functools.wraps(original)
    def log_device_info(trainer: Any) -> None:
        original(trainer)
        if isinstance(trainer.accelerator, HPUAccelerator):
            rank_zero_info(f"HPU available: True, using: {trainer.num_devices} HPU")

    setattr(log_device_info, seam.MARK, True)
    setup._log_device_info = log_device_info  # type: ignore[attr-defined]
