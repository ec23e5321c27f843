"""What the Trainer sets up by name, and logs of a device: `lightning.pytorch.trainer.setup`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import wrap


def patch_device_log(setup: ModuleType, family: Family) -> None:
    """Log which HPUs are in use, after Lightning's own lines."""

    @wrap("device-log", setup, "_log_device_info")
    def log_device_info(original: Callable[[Any], None], trainer: Any) -> None:
        original(trainer)
        ours = family.loaded("accelerator", "HPUAccelerator")
        if ours is not None and isinstance(trainer.accelerator, ours):
            from lightning_utilities.core.rank_zero import rank_zero_info

            rank_zero_info(f"HPU available: True, using: {trainer.num_devices} HPU")


def patch_profiler_names(setup: ModuleType, family: Family) -> None:
    """Let the name "hpu" mean `HPUProfiler()`."""

    @wrap("profiler-by-name", setup, "_init_profiler")
    def init_profiler(original: Callable[[Any, Any], None], trainer: Any, profiler: Any) -> None:
        if isinstance(profiler, str) and profiler.lower() == "hpu":
            profiler = family.find("profiler").HPUProfiler()
        original(trainer, profiler)
