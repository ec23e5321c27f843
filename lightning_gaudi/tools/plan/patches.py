"""A Trainer or Fabric that rehearses, in a program that `lightning-gaudi plan` has started.

What rehearses is imported when it is needed: this module is imported at the end of `import torch`,
which may be in the middle of an import of ours.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from lightning_gaudi._core import hooks
from lightning_gaudi._core.mirror import Family
from lightning_gaudi._patches import on_import
from lightning_gaudi._patches.apply import replace, require, wrap
from lightning_gaudi._patches.register import LIGHTNING, Patch

_TRAINER, _FABRIC, _LOADING = "rehearsal", "fabric-rehearsal", "rehearsal-loading"
PATCHES = (
    Patch(
        name=_TRAINER,
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{trainer}.trainer.trainer:Trainer.__init__",
            "{trainer}.trainer.trainer:Trainer.fit",
            "{trainer}.trainer.trainer:Trainer.validate",
            "{trainer}.trainer.trainer:Trainer.test",
            "{trainer}.trainer.trainer:Trainer.predict",
            "{trainer}.loops.fit_loop:_process_dataloader",
            "{trainer}.loops.evaluation_loop:_process_dataloader",
            "{trainer}.loops.prediction_loop:_process_dataloader",
        ),
        why=(
            "A program that `lightning-gaudi plan` has started is to take a few steps on a dry "
            "card, as many cards and samples as are asked about, and to write nothing. In all "
            "other programs they stay as they are."
        ),
        without="lightning-gaudi plan will not work",
        trigger="{trainer}.trainer.trainer",
        apply="lightning_gaudi.tools.plan.patches:patch_trainer",
    ),
    Patch(
        name=_FABRIC,
        library="lightning",
        checked=LIGHTNING,
        targets=(
            "{fabric}.fabric:Fabric.__init__",
            "{fabric}.fabric:Fabric.setup",
            "{fabric}.fabric:Fabric.setup_module",
            "{fabric}.fabric:Fabric.save",
            "{fabric}.fabric:Fabric.load",
            "{fabric}.fabric:Fabric.load_raw",
            "{fabric}.wrappers:_FabricModule.__init__",
            "{fabric}.wrappers:_FabricOptimizer.__init__",
            "{fabric}.wrappers:_FabricOptimizer.step",
            "torch.utils.data.dataloader:DataLoader.__iter__",
        ),
        why=(
            "A loop that a program of `lightning-gaudi plan` has written with Fabric is to take a "
            "few steps on a dry card, of batches as large as are asked about, and to write "
            "nothing. In all other programs they stay as they are."
        ),
        without="lightning-gaudi plan will not work for loops of Fabric",
        trigger="{fabric}._graveyard",
        apply="lightning_gaudi.tools.plan.patches:patch_fabric",
    ),
    Patch(
        name=_LOADING,
        library="transformers",
        checked="4.49 to 5.24",
        targets=("transformers.modeling_utils:PreTrainedModel.from_pretrained",),
        why=(
            "A program that `lightning-gaudi plan` has started needs none of a model's weights, "
            "which may be gigabytes that are not there. In all other programs it stays as it is."
        ),
        without="lightning-gaudi plan needs the weights of a model of transformers",
        trigger="transformers.modeling_utils",
        apply="lightning_gaudi.tools.plan.patches:patch_loading",
    ),
)


def install() -> None:
    """Makes this process rehearse what `dry_run.read_request` gives, whatever program it runs."""
    hooks.run_without_values()
    on_import.add(PATCHES)


def patch_trainer(module: ModuleType, family: Family) -> None:
    """Makes the Trainer take a few steps, measure them, and end the program."""
    from lightning_gaudi.tools.plan import dry_run, trainer as trainer_run

    require(_TRAINER, module, "Trainer")
    dry_run.leave_weights_empty()

    @wrap(_TRAINER, module.Trainer, "__init__")
    def init(original: Callable[..., None], trainer: Any, *args: Any, **settings: Any) -> None:
        original(trainer, *args, **trainer_run.settings(settings))

    for name in ("fit", "validate", "test", "predict"):

        @wrap(_TRAINER, module.Trainer, name)
        def run(original: Callable[..., Any], trainer: Any, *args: Any, **settings: Any) -> Any:
            whole = partial(original, trainer, *args, **settings)
            trainer_run.rehearse(whole, trainer, family)

    for name in ("fit_loop", "evaluation_loop", "prediction_loop"):
        loop = importlib.import_module(f"{family.trainer}.loops.{name}")

        @wrap(_TRAINER, loop, "_process_dataloader")
        def process(
            original: Callable[..., Any], trainer: Any, purpose: Any, stage: Any, loader: Any
        ) -> Any:
            found = original(trainer, purpose, stage, loader)
            return trainer_run.loader_for(found, trainer, stage)


def patch_fabric(module: ModuleType, family: Family) -> None:
    """Makes the loop that follows take a few steps in forks, measure them, and end the program.

    Args:
        module: What Fabric's package imports last: its own module may have brought torch in, and is
            then not seen to be imported.
        family: Of the Fabric.
    """
    from lightning_gaudi.tools.plan import dry_run, fabric as fabric_loop

    module = importlib.import_module(f"{family.fabric}.fabric")
    require(_FABRIC, module, "Fabric")
    dry_run.leave_weights_empty()
    save = module.Fabric.save

    @wrap(_FABRIC, module.Fabric, "__init__")
    def init(original: Callable[..., None], fabric: Any, *args: Any, **settings: Any) -> None:
        fabric_loop.rehearse(settings, save, family)
        original(fabric, *args, **fabric_loop.settings(settings))

    for name in ("setup", "setup_module"):

        @wrap(_FABRIC, module.Fabric, name)
        def setup(original: Callable[..., Any], fabric: Any, *args: Any, **settings: Any) -> Any:
            if (run := fabric_loop.this_run()) is not None:
                run.note_setup(fabric, args[0] if args else settings.get("module"))
            return original(fabric, *args, **settings)

    for name in ("save", "load", "load_raw"):

        @wrap(_FABRIC, module.Fabric, name)
        def skip(original: Callable[..., Any], fabric: Any, *args: Any, **settings: Any) -> Any:
            return {}  # nothing has values

    _patch_wrappers(family, fabric_loop.this_run)


def patch_loading(module: ModuleType, family: Family) -> None:
    """Makes models of transformers of their configuration alone."""
    from lightning_gaudi.tools.plan.model_changes import from_configuration

    load = module.PreTrainedModel.from_pretrained.__func__

    @classmethod  # type: ignore[misc]
    @functools.wraps(load)
    def from_pretrained(kind: Any, name: Any = None, *args: Any, **given: Any) -> Any:
        return from_configuration(partial(load, kind), kind, name, *args, **given)

    replace(_LOADING, module.PreTrainedModel, "from_pretrained", from_pretrained)


def _patch_wrappers(family: Family, this_run: Callable[[], Any]) -> None:
    """Tells a run what Fabric has set up, and gives it the batches that it is to take."""
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
