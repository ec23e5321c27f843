"""Makes a Trainer, Fabric or loop rehearse in a program that `lightning-gaudi plan` has started.

Modules that rehearse are imported when they are needed: this one is imported at the end of
`import torch`, which may be in the middle of an import of ours.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightning_gaudi._core import hooks
from lightning_gaudi._core.mirror import Family
from lightning_gaudi._patches import on_import
from lightning_gaudi._patches.apply import replace, require, wrap
from lightning_gaudi._patches.register import LIGHTNING, Patch
from lightning_gaudi.simulator import observer
from lightning_gaudi.tools.plan import model_changes, writes

_TRAINER, _FABRIC, _LOOP = "rehearsal", "fabric-rehearsal", "loop-rehearsal"
_LOADING, _SAVING, _OTHER_TRAINER = (
    "rehearsal-loading",
    "rehearsal-saving",
    "other-trainer-rehearsal",
)
_DIFFUSERS = "rehearsal-loading-diffusers"
_TENSORS, _SHARDS = "rehearsal-saving-tensors", "rehearsal-saving-shards"
_NOT_WRITTEN = (
    "Nothing has values in a rehearsal of `lightning-gaudi plan`: what is saved there is not "
    "written. In all other programs they stay as they are."
)
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
        name=_LOOP,
        library="torch",
        checked="2.6 to 2.13",
        targets=(
            "torch.utils.data.dataloader:DataLoader.__iter__",
            "torch.nn.modules.module:Module.__init__",
            "torch.nn.modules.module:Module.to",
            "torch._tensor:Tensor.backward",
        ),
        why=(
            "A loop of a program that `lightning-gaudi plan` has started gets batches as large as "
            "are asked about, and tells of its modules, which are made without values. In all "
            "other programs they stay as they are."
        ),
        without="lightning-gaudi plan will not work for loops of a program's own",
        trigger="torch.utils.data.dataloader",
        apply="lightning_gaudi.tools.plan.patches:patch_loop",
    ),
    Patch(
        name=_SAVING,
        library="torch",
        checked="2.6 to 2.13",
        targets=("torch.serialization:save", "torch:save"),
        why=_NOT_WRITTEN,
        without="lightning-gaudi plan may write the checkpoints of a program's own",
        trigger="torch.utils.data.dataloader",
        apply="lightning_gaudi.tools.plan.patches:patch_saving",
    ),
    Patch(
        name=_TENSORS,
        library="safetensors",
        checked="0.8.0",
        targets=("safetensors.torch:save_file", "safetensors.torch:save_model"),
        why=_NOT_WRITTEN,
        without="lightning-gaudi plan may write the weights that a program saves",
        trigger="safetensors.torch",
        apply="lightning_gaudi.tools.plan.patches:patch_tensors",
    ),
    Patch(
        name=_SHARDS,
        library="torch",
        checked="2.6 to 2.13",
        targets=(
            "torch.distributed.checkpoint.state_dict_saver:save",
            "torch.distributed.checkpoint.state_dict_saver:async_save",
        ),
        why=_NOT_WRITTEN,
        without="lightning-gaudi plan may write the shards that a program saves",
        trigger="torch.distributed.checkpoint.state_dict_saver",
        apply="lightning_gaudi.tools.plan.patches:patch_shards",
    ),
    Patch(
        name=writes.PATCH,
        library="python",
        checked="3.10 to 3.13",
        targets=("builtins:open", "io:open"),
        why=(
            "What a program writes in a rehearsal of `lightning-gaudi plan` goes to a folder that "
            "is removed. In all other programs they stay as they are."
        ),
        without="lightning-gaudi plan will not work",
    ),
    Patch(
        name=_OTHER_TRAINER,
        library="transformers",
        checked="4.49 to 5.24",
        targets=(
            "transformers.trainer:Trainer.__init__",
            "transformers.trainer:Trainer.train",
            "transformers.trainer:Trainer.save_model",
            "transformers.trainer:Trainer._save_checkpoint",
        ),
        why=(
            "In a rehearsal of `lightning-gaudi plan` it saves, reports and resumes nothing. In "
            "all other programs it stays as it is."
        ),
        without="a plan of a program with transformers' Trainer may write its checkpoints",
        trigger="transformers.trainer",
        apply="lightning_gaudi.tools.plan.patches:patch_other_trainer",
    ),
    Patch(
        name=_LOADING,
        library="transformers",
        checked="4.49 to 5.24",
        targets=(
            "transformers.modeling_utils:PreTrainedModel.from_pretrained",
            "transformers.modeling_utils:PreTrainedModel.save_pretrained",
        ),
        why=(
            "A program that `lightning-gaudi plan` has started needs none of a model's weights, "
            "which may be gigabytes that are not there, and has none to save. In all other "
            "programs it stays as it is."
        ),
        without="lightning-gaudi plan needs the weights of a model of transformers",
        trigger="transformers.modeling_utils",
        apply="lightning_gaudi.tools.plan.patches:patch_loading",
    ),
    Patch(
        name=_DIFFUSERS,
        library="diffusers",
        checked="0.35 to 0.42",
        targets=(
            "diffusers.models.modeling_utils:ModelMixin.from_pretrained",
            "diffusers.models.modeling_utils:ModelMixin.save_pretrained",
        ),
        why=(
            "A program that `lightning-gaudi plan` has started needs none of a model's weights, "
            "and has none to save. In all other programs it stays as it is."
        ),
        without="lightning-gaudi plan needs the weights of a model of diffusers",
        trigger="diffusers.models.modeling_utils",
        apply="lightning_gaudi.tools.plan.patches:patch_diffusers",
    ),
)


def install() -> None:
    """Makes this process rehearse the request of `dry_run.read_request`, whatever program it runs.

    A second call does nothing.
    """
    if not hooks.has_values():
        return
    hooks.run_without_values()
    if os.environ.get("RANK", "") not in ("", "0"):
        os._exit(0)  # a launcher's other ranks, which a rehearsal does without
    on_import.add(PATCHES)
    observer.before_first_use(_rehearse_loop)
    register_optimizer_step_pre_hook(_note_step)
    model_changes.prepare_to_leave_empty()


def _rehearse_loop() -> None:
    from lightning_gaudi.tools.plan import plain

    plain.rehearse()


def _note_step(optimizer: Any, *_: Any) -> None:
    from lightning_gaudi.tools.plan import plain

    plain.note_step_on_the_host(optimizer)


def patch_trainer(module: ModuleType, family: Family) -> None:
    """Makes the Trainer take a few steps, measure them, and end the program."""
    from lightning_gaudi.tools.plan import trainer as trainer_run

    require(_TRAINER, module, "Trainer")

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
        module: The module that Fabric's package imports last. Fabric's own module may be the one
            that has imported torch, and its import is not noticed then.
        family: The family of the Fabric.
    """
    from lightning_gaudi.tools.plan import fabric as fabric_loop

    module = importlib.import_module(f"{family.fabric}.fabric")
    require(_FABRIC, module, "Fabric")
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
    """Makes models of transformers from their configuration alone, and saves none."""
    from lightning_gaudi.tools.plan.model_changes import from_configuration

    load = module.PreTrainedModel.from_pretrained.__func__

    @classmethod  # type: ignore[misc]
    @functools.wraps(load)
    def from_pretrained(kind: Any, name: Any = None, *args: Any, **given: Any) -> Any:
        return from_configuration(partial(load, kind), kind, name, *args, **given)

    replace(_LOADING, module.PreTrainedModel, "from_pretrained", from_pretrained)
    _leave_out(_LOADING, module.PreTrainedModel, "save_pretrained")


def patch_diffusers(module: ModuleType, family: Family) -> None:
    """Makes models of diffusers from their configuration alone, and saves none."""
    from lightning_gaudi.tools.plan.model_changes import from_diffusers_configuration

    load = module.ModelMixin.from_pretrained.__func__

    @classmethod  # type: ignore[misc]
    @functools.wraps(load)
    def from_pretrained(kind: Any, name: Any, **given: Any) -> Any:
        return from_diffusers_configuration(partial(load, kind), kind, name, **given)

    replace(_DIFFUSERS, module.ModelMixin, "from_pretrained", from_pretrained)
    _leave_out(_DIFFUSERS, module.ModelMixin, "save_pretrained")


def patch_loop(module: ModuleType, family: Family) -> None:
    """Gives loops the batches of a rehearsal, and notes what is moved to the card."""

    @wrap(_LOOP, module.DataLoader, "__iter__")
    def batches(original: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        from lightning_gaudi.tools.plan import fabric, plain

        run = plain.this_run() or fabric.this_run()
        return original(loader) if run is None else run.batches(original, loader)

    # Only once a module is made, since a process that the program starts may compute what the
    # program reads, and needs its values.
    @wrap(_LOOP, torch.nn.Module, "__init__")
    def make(original: Callable[..., None], module: Any, *args: Any, **settings: Any) -> None:
        model_changes.leave_weights_empty()
        original(module, *args, **settings)

    @wrap(_LOOP, torch.nn.Module, "to")
    def move(original: Callable[..., Any], module: Any, *args: Any, **settings: Any) -> Any:
        from lightning_gaudi.tools.plan import plain

        device = torch._C._nn._parse_to(*args, **settings)[0]
        if device is not None and device.type == "hpu":
            plain.rehearse()  # now, before the program uses the card
            if (run := plain.this_run()) is not None:
                run.note_moved(module)
        return original(module, *args, **settings)

    @wrap(_LOOP, torch.Tensor, "backward")
    def backward(original: Callable[..., None], tensor: Any, *args: Any, **settings: Any) -> None:
        from lightning_gaudi.tools.plan import plain

        if (run := plain.this_run()) is not None:
            run.note_backward_call()
        original(tensor, *args, **settings)


def patch_saving(module: ModuleType, family: Family) -> None:
    """Lets a fork that rehearses write nothing."""
    for owner in (torch.serialization, torch):
        # The names are torch's, since a caller may pass the arguments by name.
        @wrap(_SAVING, owner, "save")
        def save(original: Callable[..., None], obj: Any, f: Any, *args: Any, **more: Any) -> None:
            from lightning_gaudi.tools.plan import dry_run

            # A save to memory is allowed: collectives send objects so.
            is_on_disk = isinstance(f, (str, os.PathLike)) or hasattr(f, "name")
            if not (is_on_disk and dry_run.is_playing()):
                original(obj, f, *args, **more)


def patch_tensors(module: ModuleType, family: Family) -> None:
    """Lets a fork that rehearses save no weights by safetensors."""
    for name in ("save_file", "save_model"):
        _leave_out(_TENSORS, module, name)


def patch_shards(module: ModuleType, family: Family) -> None:
    """Lets a fork that rehearses save no shards."""
    for name in ("save", "async_save"):
        _leave_out(_SHARDS, module, name)


def patch_other_trainer(module: ModuleType, family: Family) -> None:
    """Lets transformers' Trainer save, report and resume nothing."""
    names = ("save_strategy", "report_to", "load_best_model_at_end", "push_to_hub")

    @wrap(_OTHER_TRAINER, module.Trainer, "__init__")
    def init(original: Callable[..., None], trainer: Any, *args: Any, **settings: Any) -> None:
        given = settings.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            for name, value in zip(names, ("no", [], False, False), strict=True):
                replace(_OTHER_TRAINER, given, name, value)
        original(trainer, *args, **settings)

    @wrap(_OTHER_TRAINER, module.Trainer, "train")
    def train(original: Callable[..., Any], trainer: Any, *args: Any, **settings: Any) -> Any:
        settings.pop("resume_from_checkpoint", None)
        return original(trainer, None, *args[1:], **settings)

    for name in ("save_model", "_save_checkpoint"):
        _leave_out(_OTHER_TRAINER, module.Trainer, name)


def _leave_out(patch: str, owner: Any, name: str) -> None:
    """Makes a function do nothing in a fork that rehearses."""

    @wrap(patch, owner, name)
    def skip(original: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        from lightning_gaudi.tools.plan import dry_run

        return None if dry_run.is_playing() else original(*args, **settings)


def _patch_wrappers(family: Family, this_run: Callable[[], Any]) -> None:
    """Tells a run what Fabric has set up, and gives its loop the batches of a rehearsal."""
    wrappers = importlib.import_module(f"{family.fabric}.wrappers")

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
