"""A Trainer or Fabric that rehearses, in a program that `lightning-gaudi plan` has started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import require, wrap

_TRAINER, _FABRIC = "rehearsal", "fabric-rehearsal"
_VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""`_core.rehearsals.VARIABLE`, which need not be imported to see that it is not set."""


def patch_trainer(module: ModuleType, family: Family) -> None:
    """Have it take a few steps, measure them, and end the program."""
    require(_TRAINER, module, "Trainer")
    if not os.environ.get(_VARIABLE):
        return
    from lightning_gaudi.tools.plan import rehearsal, trainer as rehearsed

    rehearsal.leave_weights_empty()

    @wrap(_TRAINER, module.Trainer, "__init__")
    def init(original: Callable[..., None], trainer: Any, *args: Any, **settings: Any) -> None:
        original(trainer, *args, **rehearsed.settings(settings))

    for name in ("fit", "validate", "test", "predict"):

        @wrap(_TRAINER, module.Trainer, name)
        def run(original: Callable[..., Any], trainer: Any, *args: Any, **settings: Any) -> Any:
            whole = partial(original, trainer, *args, **settings)
            rehearsed.rehearse(whole, trainer, family)

    for name in ("fit_loop", "evaluation_loop", "prediction_loop"):
        loop = importlib.import_module(f"{family.trainer}.loops.{name}")

        @wrap(_TRAINER, loop, "_process_dataloader")
        def process(
            original: Callable[..., Any], trainer: Any, purpose: Any, stage: Any, loader: Any
        ) -> Any:
            found = original(trainer, purpose, stage, loader)
            return rehearsed.loader_for(found, trainer, stage)


def patch_fabric(module: ModuleType, family: Family) -> None:
    """Have what follows take a few steps in forks, measure them, and end the program.

    Args:
        module: What Fabric's package imports last: its own module may have brought torch in, and is
            then not seen to be imported.
        family: Of the Fabric.
    """
    module = importlib.import_module(f"{family.fabric}.fabric")
    require(_FABRIC, module, "Fabric")
    if not os.environ.get(_VARIABLE):
        return
    from lightning_gaudi.tools.plan import fabric as rehearsed, rehearsal

    rehearsal.leave_weights_empty()
    save = module.Fabric.save

    @wrap(_FABRIC, module.Fabric, "__init__")
    def init(original: Callable[..., None], fabric: Any, *args: Any, **settings: Any) -> None:
        rehearsed.rehearse(settings, save, family)
        original(fabric, *args, **rehearsed.settings(settings))

    for name in ("setup", "setup_module"):

        @wrap(_FABRIC, module.Fabric, name)
        def setup(original: Callable[..., Any], fabric: Any, *args: Any, **settings: Any) -> Any:
            if (run := rehearsed.this_run()) is not None:
                run.note_setup(fabric, args[0] if args else settings.get("module"))
            return original(fabric, *args, **settings)

    for name in ("save", "load", "load_raw"):

        @wrap(_FABRIC, module.Fabric, name)
        def skip(original: Callable[..., Any], fabric: Any, *args: Any, **settings: Any) -> Any:
            return {}  # nothing has values

    _patch_wrappers(family, rehearsed.this_run)


def _patch_wrappers(family: Family, this_run: Callable[[], Any]) -> None:
    """Have a run be told what Fabric has set up, and given the batches that it is to take."""
    wrappers = importlib.import_module(f"{family.fabric}.wrappers")
    loaders = importlib.import_module("torch.utils.data.dataloader")

    @wrap(_FABRIC, wrappers._FabricModule, "__init__")
    def make_module(original: Callable[..., None], made: Any, *args: Any, **settings: Any) -> None:
        original(made, *args, **settings)
        if (run := this_run()) is not None:
            run.note_module(made)

    @wrap(_FABRIC, wrappers._FabricOptimizer, "__init__")
    def make(original: Callable[..., None], made: Any, *args: Any, **settings: Any) -> None:
        original(made, *args, **settings)
        if (run := this_run()) is not None:
            run.note_optimizer(made)

    @wrap(_FABRIC, wrappers._FabricOptimizer, "step")
    def step(original: Callable[..., Any], optimizer: Any, *args: Any, **settings: Any) -> Any:
        run = this_run()
        if run is None:
            return original(optimizer, *args, **settings)
        return run.step(original, optimizer, *args, **settings)

    @wrap(_FABRIC, loaders.DataLoader, "__iter__")
    def batches(original: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        run = this_run()
        return original(loader) if run is None else run.batches(original, loader)
