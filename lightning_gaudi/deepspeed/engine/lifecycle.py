"""Prepares a model for DeepSpeed's engine, and frees it from an earlier one.

A model may be fitted and then tested, or fitted twice. DeepSpeed leaves its hooks in it, which
would reduce gradients a second time. With ZeRO-3 it also leaves its shards, while Lightning has
moved all other tensors to the CPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, functional
from torch.optim import Optimizer

from lightning_gaudi._core import engines
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._core.wording import listed
from lightning_gaudi._patches.apply import replace

from ...distributed.devices import DEVICE
from . import regions

# The hooks of an engine itself, which its `destroy` does not remove (deepspeed 0.19.8,
# `runtime/engine.py`).
_HOOKS = ("module_forward_pre_hook", "module_forward_post_hook", "first_dataloader_check")


def holds_zero3_shards(parameters: Iterable[Tensor]) -> bool:
    """Returns whether some of the parameters are sharded by ZeRO-3."""
    return any(hasattr(parameter, "ds_id") for parameter in parameters)


def leave_last_engine(model: Module) -> None:
    """Removes what an earlier engine has left in a model; the user's hooks stay."""
    engine = engines.take(model)
    if engine is not None:
        engine.destroy()
        for hook in (getattr(engine, name, None) for name in _HOOKS):
            if hook is not None:
                hook.remove()
    regions.forget(model)
    if holds_zero3_shards(model.parameters()):
        # DeepSpeed assumes that a sharded model is on the card, and does not move it.
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.to(DEVICE)


def move_to_card(model: Module, optimizer: Optimizer | None = None) -> None:
    """Moves a model to the card, and lets its optimizer follow.

    A move to an HPU may give the model new parameters. DeepSpeed moves the model alone, and the
    optimizer would go on with the old ones on the CPU: in stage 0 nothing would be trained.

    Args:
        model: A model; sharded ones stay where they are.
        optimizer: Of some of its parameters.
    """
    if holds_zero3_shards(model.parameters()):
        return
    before = dict(model.named_parameters())
    with kept_tied(model):
        model.to(DEVICE)
    if optimizer is None:
        return
    replaced = {before[name]: parameter for name, parameter in model.named_parameters()}

    def found(parameter: Tensor) -> Tensor:
        return replaced.get(parameter, parameter)  # type: ignore[call-overload,no-any-return]

    for group in optimizer.param_groups:
        group["params"] = [found(parameter) for parameter in group["params"]]
    for parameter in [*optimizer.state]:
        optimizer.state[found(parameter)] = optimizer.state.pop(parameter)


def restore_linear() -> None:
    """Restores torch's `linear`, which ZeRO-3 replaces in the whole process.

    With DeepSpeed's own, tensor parallelism fails in inference mode. The next engine of ZeRO-3 sets
    it again (deepspeed 0.19.8, `runtime/zero/partition_parameters.py`). Delete once DeepSpeed
    restores it.
    """
    name = "deepspeed.runtime.zero.partition_parameters"
    if name in sys.modules:
        module = importlib.import_module(name)
        if functional.linear is module.zero3_linear_wrap:
            original = module.InsertPostInitMethodToModuleSubClasses.linear_bk
            replace("linear", functional, "linear", original)


def refuse_unfrozen(engine: Any, model: Module) -> None:
    """Refuses later forwards with weights that were unfrozen and the engine would never step.

    The engine makes its shards of the weights that train when it is made.

    Args:
        engine: DeepSpeed's, which has just been made.
        model: Its model.
    """
    frozen = {name: each for name, each in model.named_parameters() if not each.requires_grad}

    def check(module: Module, args: Any) -> None:
        late = [name for name, each in frozen.items() if each.requires_grad]
        if late and torch.is_grad_enabled():
            raise RuntimeError(
                f"{listed(late)} were frozen when DeepSpeed took the model, "
                "and are to be trained now: ZeRO would never step them. Let them train from the "
                "start with a learning rate of 0, or fit again from a checkpoint with them "
                "unfrozen; under DDP and FSDP weights can be unfrozen at any time."
            )

    if frozen:
        engine.register_forward_pre_hook(check)
