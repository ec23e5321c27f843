"""Weights that are unfrozen while an engine trains: it has made its shards of the others."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from lightning_gaudi._core.wording import listed


def refuse_unfrozen(engine: Any, model: Module) -> None:
    """Refuses a forward with weights that the engine would never step, from here on.

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
