"""What ZeRO-3 gathers together, and when a step begins to which its order of gathering belongs.

The weights of a compiled region are gathered, and released, all together.

DeepSpeed gathers around each layer, by hooks that no graph can hold. It can do so around a module
with all that is in it, which it calls a leaf; but as it has it (0.19.8, `runtime/zero/stage3.py`,
`create_reduce_and_remove_grad_hooks`) gradients of a leaf are reduced in a full backward hook of
the module. torch runs that one too early where no input of the module needs a gradient, as in the
first block of a model: before the backward pass of the module, whose weights the reduction
releases. "The size of tensor a (0) must match" is what the backward pass then ends with, compiled
or not. So here only the gathering is that of a leaf, and each gradient is reduced when it is there,
as that of any other weight.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Module

from lightning_gaudi._core import engines
from lightning_gaudi._patches.apply import replace, require

_PATCH = "deepspeed-regions"
_STEPS = "deepspeed-steps"


class GatheredRegions:
    """Has an engine of ZeRO-3 gather each compiled module as one, from its first call on.

    Not before: a module that is never called as a whole must leave the gathering to those in it.

    Args:
        engine: DeepSpeed's, of stage 3.
        modules: Those whose forward is compiled, and those in them that may be called instead.
    """

    def __init__(self, engine: Any, modules: Iterable[Module]) -> None:
        self._gathering = _gathering(engine)
        require(_PATCH, self._gathering, "forward_hooks", "backward_hooks")
        self._handles: dict[Module, Any] = {
            # Before DeepSpeed's own, which it tells what to gather.
            module: module.register_forward_pre_hook(self._gather_as_one, prepend=True)
            for module in modules
        }

    def remove(self) -> None:
        """Leaves those alone that have not been called; the others stay so until the next engine.

        See `forget`.
        """
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def _gather_as_one(self, module: Module, args: Any) -> None:
        """Takes DeepSpeed's hooks off what is in a module, and has it gather the module as one."""
        inner = [*module.modules()][1:]
        for each in (module, *inner):
            if (handle := self._handles.pop(each, None)) is not None:
                handle.remove()
        hooks = {id(each._forward_hooks) for each in inner}
        hooks |= {id(each._forward_pre_hooks) for each in inner}
        for handle in (*self._gathering.forward_hooks, *self._gathering.backward_hooks):
            if id(handle.hooks_dict_ref()) in hooks:
                handle.remove()
        for each in inner:
            if each._parameters:
                each.register_forward_pre_hook(_refuse_released)
        _set_leaf(module, True)
        engines.gathered_as_one.add(module)


def begin_steps_with_engine(engine: Any) -> None:
    """Lets a step of ZeRO-3 begin where the engine is called, and not in the middle of that call.

    DeepSpeed begins one wherever its model is called. In Lightning the engine calls the model's
    `training_step`, which calls the model: the order of the layers, which DeepSpeed records to
    gather weights ahead, never came to an end. So it gathered nothing ahead, and all ranks compared
    what they had recorded in each step: eight broadcasts, for four of which the host waited. Delete
    once a step begins at the engine (deepspeed 0.19.8, `runtime/zero/parameter_offload.py`,
    `setup_zero_stage3_hooks`).

    Args:
        engine: DeepSpeed's, of stage 3.
    """
    gathering = _gathering(engine)
    require(_STEPS, gathering, "fwd_pre_hook", "get_param_coordinator", "module")
    calls: list[Module] = []  # of the engine that have not returned

    def begin(module: Module, args: Any) -> None:
        if not calls:
            gathering.get_param_coordinator().reset_step()
        if module is engine:
            calls.append(module)

    def end(module: Module, args: Any, result: Any) -> None:
        calls.clear()

    gathering.fwd_pre_hook.remove()
    root = gathering.module.register_forward_pre_hook(begin, prepend=True)
    replace(_STEPS, gathering, "fwd_pre_hook", root)
    engine.register_forward_pre_hook(begin)
    engine.register_forward_hook(end, always_call=True)


def _gathering(engine: Any) -> Any:
    """Returns what gathers an engine's weights: in an engine that evaluates, its optimizer."""
    return getattr(engine.optimizer, "parameter_offload", engine.optimizer)


def forget(model: Module) -> None:
    """Takes back what `GatheredRegions` has done to a model, once its engine is no more."""
    for module in model.modules():
        if module in engines.gathered_as_one:
            engines.gathered_as_one.discard(module)
            _set_leaf(module, False)
        for key, hook in [*module._forward_pre_hooks.items()]:
            if hook is _refuse_released:
                del module._forward_pre_hooks[key]


def _refuse_released(module: Module, args: Any) -> None:
    """Refuses a call of a module from outside of the region that gathers its weights.

    Raises:
        RuntimeError: Its weights are not here.
    """
    if torch.compiler.is_compiling():
        return
    for name, weight in module._parameters.items():
        if weight is not None and hasattr(weight, "ds_shape") and weight.shape != weight.ds_shape:
            kind = type(module).__name__
            raise RuntimeError(
                f"A {kind} is called by itself, and its {name} is not on this card: under ZeRO-3 "
                "the weights of a compiled region are gathered when the region is called. Name "
                f"what is called, as compile={{'regions': [{kind!r}]}} in the strategy, or pass "
                "compile='none'."
            )


def _set_leaf(module: Module, is_leaf: bool) -> None:
    importlib.import_module("deepspeed.utils").set_z3_leaf_module(module, is_leaf)
