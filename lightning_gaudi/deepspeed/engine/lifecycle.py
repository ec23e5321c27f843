"""One model through several engines: what the former one has left in it is undone before the next.

A model is fitted and then tested, or fitted twice. DeepSpeed leaves its hooks in it, which would
reduce gradients a second time, and in ZeRO-3 its shards, beside which Lightning has moved to the
CPU what is not in shards.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torch.nn import Module, functional

from ...distributed import DEVICE

# An engine's own hooks in the model's forward, beside its optimizer's (deepspeed 0.19.8,
# `runtime/engine.py`): `destroy` leaves them.
_HOOKS = ("module_forward_pre_hook", "module_forward_post_hook", "first_dataloader_check")

_engines: weakref.WeakKeyDictionary[Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The engine that each model went through last."""


def prepare(model: Module) -> None:
    """Undo what a former engine has left in a model; the user's hooks stay."""
    engine = _engines.pop(model, lambda: None)()
    if engine is not None:
        engine.destroy()
        for hook in (getattr(engine, name, None) for name in _HOOKS):
            if hook is not None:
                hook.remove()
    if any(hasattr(each, "ds_id") for each in model.parameters()):
        # DeepSpeed takes a model in shards for being where it has to be.
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.to(DEVICE)


def note(model: Module, engine: Any) -> None:
    """Remember the engine that a model goes through."""
    _engines[model] = weakref.ref(engine)


def restore_linear() -> None:
    """Put back torch's `linear`, for which ZeRO-3 sets one of its own, in the whole process.

    With that one, tensor parallelism fails in inference mode. The next engine of ZeRO-3 sets it
    again (deepspeed 0.19.8, `runtime/zero/partition_parameters.py`). Delete once it takes it back.
    """
    module = sys.modules.get("deepspeed.runtime.zero.partition_parameters")
    if module is not None and functional.linear is module.zero3_linear_wrap:
        functional.linear = module.InsertPostInitMethodToModuleSubClasses.linear_bk
