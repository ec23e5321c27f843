"""Gradients that a fit has accumulated, and not yet given to an optimizer, as it saves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from .nested_optimizers import nested

_HOOKS = "_optimizer_step_post_hooks"
_TAKEN = "_lightning_gaudi_taken"
"""Set on a gradient that an optimizer has stepped with: its version then."""


def watch_steps(optimizers: list[Any]) -> list[Any]:
    """Marks the gradients that optimizers step with: where users step by hand, nobody else knows.

    Returns:
        What to call `remove()` of as the fit ends.
    """
    # One that never called the constructor of its class has no hooks; what it holds may have.
    own = [each for each in nested(optimizers).values() if _HOOKS in vars(each)]
    return [each.register_step_post_hook(_mark) for each in own]


def gradients(trainer: pl.Trainer, *, is_within_epoch: bool, are_whole: bool) -> dict[str, Tensor]:
    """What this rank has accumulated since the last step of the optimizers, on the CPU, by name.

    Args:
        trainer: Of a fit.
        is_within_epoch: Whether the epoch has batches to come.
        are_whole: Whether each rank has its own of all parameters. Where they are sharded none can
            be saved, which is said.
    """
    module = trainer.lightning_module
    named = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    if module.automatic_optimization:
        loop, every = trainer.fit_loop.epoch_loop, trainer.accumulate_grad_batches
        num_batches = loop.batch_progress.current.ready % every
        if not is_within_epoch or not num_batches or not loop._should_accumulate():
            return {}
        what = f"after {num_batches} of {every} batches that are accumulated"
    else:
        named = {name: grad for name, grad in named.items() if _is_to_step(grad)}
        if not named:
            return {}
        what = "with gradients that are accumulated by hand"
    if are_whole:
        return {name: grad.cpu() for name, grad in named.items()}
    rank_zero_warn(
        f"A checkpoint is saved {what}, and {type(trainer.strategy).__name__} cannot save these "
        "gradients: a fit that resumes takes its next step without them. Save after a step of the "
        "optimizer, as ModelCheckpoint(every_n_train_steps=...) does."
    )
    return {}


def _mark(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for each in group["params"]:
            if (grad := each.grad) is not None:
                setattr(grad, _TAKEN, grad._version)


def _is_to_step(grad: Tensor) -> bool:
    version: int = grad._version
    return getattr(grad, _TAKEN, None) != version
