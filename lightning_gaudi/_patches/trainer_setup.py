"""What the Trainer knows of devices beside its connector: their log, profilers and full memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import wrap


def patch_device_log(setup: ModuleType, family: Family) -> None:
    """Logs which HPUs are in use, after Lightning's own lines."""

    @wrap("device-log", setup, "_log_device_info")
    def log_device_info(original: Callable[[Any], None], trainer: Any) -> None:
        original(trainer)
        ours = family.loaded("accelerator", "HPUAccelerator")
        if ours is not None and isinstance(trainer.accelerator, ours):
            from lightning_utilities.core.rank_zero import rank_zero_info

            rank_zero_info(f"HPU available: True, using: {trainer.num_devices} HPU")


def patch_profiler_names(setup: ModuleType, family: Family) -> None:
    """Lets the name "hpu" mean `HPUProfiler()`."""

    @wrap("profiler-by-name", setup, "_init_profiler")
    def init_profiler(original: Callable[[Any, Any], None], trainer: Any, profiler: Any) -> None:
        if isinstance(profiler, str) and profiler.lower() == "hpu":
            profiler = family.find("profiler").HPUProfiler()
        original(trainer, profiler)


def patch_trials(module: ModuleType, family: Family) -> None:
    """Lets no loss end the run while a finder of the Tuner takes steps, which it takes back.

    Args:
        module: `tuner.lr_finder` or `tuner.batch_size_scaling`.
        family: Lightning's namespace.
    """
    finder = module.__name__.rpartition(".")[2]

    @wrap(f"trial-losses-{finder}".replace("_", "-"), module, "_try_loop_run")
    def try_loop_run(
        original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any
    ) -> None:
        guard = getattr(trainer.strategy, "guard", None)
        with nullcontext() if guard is None else guard.losses.trial():
            original(trainer, *args, **kwargs)


def patch_out_of_memory(module: ModuleType, family: Family) -> None:
    """Lets the finder of batch sizes recognize an HPU that is full: `utilities.memory`."""

    @wrap("trainer-out-of-memory", module, "is_oom_error")
    def is_oom_error(original: Callable[[BaseException], bool], exception: BaseException) -> bool:
        from lightning_gaudi.reliability.memory import is_out_of_memory

        return original(exception) or is_out_of_memory(exception)
