"""A Trainer that rehearses, in a program that `lightning-gaudi plan` has started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import require, wrap

_NAME = "rehearsal"
_VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""`_core.rehearsals.VARIABLE`, which need not be imported to see that it is not set."""


def patch_trainer(module: ModuleType, family: Family) -> None:
    """Have it take a few steps, measure them, and end the program."""
    require(_NAME, module, "Trainer")
    if not os.environ.get(_VARIABLE):
        return
    from lightning_gaudi.planning import rehearsal

    rehearsal.begin()

    @wrap(_NAME, module.Trainer, "__init__")
    def init(original: Callable[..., None], trainer: Any, *args: Any, **settings: Any) -> None:
        original(trainer, *args, **rehearsal.settings(settings))

    for name in ("fit", "validate", "test", "predict"):

        @wrap(_NAME, module.Trainer, name)
        def run(original: Callable[..., Any], trainer: Any, *args: Any, **settings: Any) -> Any:
            model = args[0] if args else settings.get("model")
            whole = partial(original, trainer, *args, **settings)
            rehearsal.rehearse(whole, trainer, model, family)

    for name in ("fit_loop", "evaluation_loop", "prediction_loop"):
        loop = importlib.import_module(f"{family.trainer}.loops.{name}")

        @wrap(_NAME, loop, "_process_dataloader")
        def process(
            original: Callable[..., Any], trainer: Any, purpose: Any, stage: Any, loader: Any
        ) -> Any:
            found = original(trainer, purpose, stage, loader)
            return rehearsal.loader_for(found, trainer, stage)
