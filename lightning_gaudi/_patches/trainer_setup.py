"""Patches the Trainer and its CLI in places other than the connector.

They concern the log of devices, profilers by name, errors of full memory, peaks for
`ThroughputMonitor`, the names of HPU classes that Lightning had until 2.5.5, and the errors of a
wrong configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_gaudi._core.mirror import Family

from .apply import find_when_asked, wrap
from .register import STUBS

if TYPE_CHECKING:
    import torch


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
    """Makes the name "hpu" mean `HPUProfiler()`."""

    @wrap("profiler-by-name", setup, "_init_profiler")
    def init_profiler(original: Callable[[Any, Any], None], trainer: Any, profiler: Any) -> None:
        if isinstance(profiler, str) and profiler.lower() == "hpu":
            profiler = family.find("profiler").HPUProfiler()
        original(trainer, profiler)


def patch_trials(module: ModuleType, family: Family) -> None:
    """Keeps losses from ending the run while a finder of the Tuner takes trial steps.

    Args:
        module: `tuner.lr_finder` or `tuner.batch_size_scaling`.
        family: Lightning's namespace.
    """
    finder = module.__name__.rpartition(".")[2]

    @wrap(f"trial-losses-{finder}".replace("_", "-"), module, "_try_loop_run")
    def try_loop_run(
        original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any
    ) -> None:
        kind = family.loaded("strategies.base", "HPUStrategy")
        is_ours = kind is not None and isinstance(trainer.strategy, kind)
        with trainer.strategy.guard.losses.trial() if is_ours else nullcontext():
            original(trainer, *args, **kwargs)


def patch_out_of_memory(module: ModuleType, family: Family) -> None:
    """Lets the finder of batch sizes recognize a full HPU, in `utilities.memory`."""

    @wrap("trainer-out-of-memory", module, "is_oom_error")
    def is_oom_error(original: Callable[[BaseException], bool], exception: BaseException) -> bool:
        from lightning_gaudi._core.memory.report import is_out_of_memory

        return original(exception) or is_out_of_memory(exception)


def patch_throughput(module: ModuleType, family: Family) -> None:
    """Adds HPUs to a module of Lightning's that looks up peaks and dtypes.

    It looks both up by the types of device and plugin, and has no entries for ours.

    Args:
        module: `fabric.utilities.throughput`, or the Trainer's `callbacks.throughput_monitor`.
        family: Lightning's and ours.
    """
    role = "fabric" if module.__name__.startswith(family.fabric) else "trainer"
    name = f"{role}-throughput"

    @wrap(name, module, "get_available_flops")
    def get_available_flops(
        original: Callable[..., int | None], device: torch.device, dtype: torch.dtype | str
    ) -> int | None:
        if device.type == "hpu":
            from lightning_utilities.core.rank_zero import rank_zero_warn

            from lightning_gaudi._core.flops import available_flops, why_no_peak

            why = why_no_peak(dtype)
            if why is not None:
                rank_zero_warn(why)  # as Lightning does for a GPU that it does not know
            return available_flops(dtype)
        return original(device, dtype)

    @wrap(name, module, "_plugin_to_compute_dtype")
    def plugin_to_compute_dtype(original: Callable[[Any], torch.dtype], plugin: Any) -> torch.dtype:
        ours = family.loaded("fabric.precision.plugin", "HPUWholePrecision")
        if ours is not None and isinstance(plugin, ours):
            import torch

            kinds = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}
            return kinds[plugin.precision.partition("-")[0]]
        return original(plugin)


_HOMES = {
    "HPUAccelerator": "accelerator",
    "HPUCheckpointIO": "checkpoint",
    "HPUParallelStrategy": "strategies",
    "HPUPrecisionPlugin": "precision",
    "SingleHPUStrategy": "strategies",
}
"""The class names, and our packages with the classes."""


def patch_stubs(graveyard: ModuleType, family: Family) -> None:
    """Replaces Lightning's stubs by our classes, which are imported when somebody asks.

    Args:
        graveyard: The module with the stubs, the last one that Lightning imports.
        family: Lightning's and ours.
    """
    for place, names in _places(graveyard, family):
        homes = {name: f"{family.ours}.{_HOMES[name]}" for name in names}
        find_when_asked("old-names", place, homes)


def _places(graveyard: ModuleType, family: Family) -> Iterator[tuple[Any, list[str]]]:
    """Yields the modules that have stubs, and their names."""
    packages = {package for packages in STUBS.values() for package in packages}
    stubs = {name: vars(graveyard)[name] for name in STUBS if name in vars(graveyard)}
    for place in (graveyard, *(importlib.import_module(f"{family.trainer}.{p}") for p in packages)):
        names = [name for name, stub in stubs.items() if vars(place).get(name) is stub]
        if names:
            yield place, names


_ERRORS = "lightning_gaudi.config_errors"
_MAX_CHARS = 100_000


def patch_parser(module: ModuleType, family: Any) -> None:
    """Adds file, line and nearest setting to the errors of LightningCLI if there is an HPU.

    Args:
        module: Lightning's, with the parser.
        family: Not used.
    """
    parser = module.LightningArgumentParser
    if not hasattr(parser, "parse_args"):  # jsonargparse is not installed
        return

    @wrap("cli-errors", parser, "parse_args")
    def parse_args(
        original: Callable[..., Any], self: Any, args: Any = None, *rest: Any, **options: Any
    ) -> Any:
        with importlib.import_module(_ERRORS).parsing(self, args):
            return original(self, args, *rest, **options)

    @wrap("cli-errors", parser, "error")
    def error(
        original: Callable[..., Any], self: Any, message: str, ex: Exception | None = None
    ) -> Any:
        from lightning_gaudi._core import vendor
        from lightning_gaudi.untrusted import printable

        said = importlib.import_module(_ERRORS).explain(message, self)
        if said and vendor.is_available():
            message = f"{message.rstrip()}\n{said}"
        if vendor.is_available():  # keys and values are a file's, and may move the cursor
            message = printable(message, max_chars=_MAX_CHARS, lines=True)
        return original(self, message, ex)
