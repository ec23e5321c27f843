"""Finds where in Lightning's loops a checkpoint was saved, and continues them from there.

Lightning continues at the next batch and skips what was still to do after the one before (see
`reset` and `advance` in `lightning/pytorch/loops/training_epoch_loop.py`). It does not call
`on_train_epoch_start` of that epoch again either; `call_again` does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar
from lightning.pytorch.loops.utilities import _is_max_limit_reached
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lightning_gaudi._core import host_random, vendor


class Place(Enum):
    """The point of a fit at which a checkpoint was saved."""

    NOT_BEGUN = "not begun"
    BETWEEN_EPOCHS = "between epochs"
    EPOCH_END = "at the end of an epoch"
    """In `on_train_epoch_end`: schedulers that wait for a metric of the epoch have not stepped."""
    STEP_END = "at the end of a step"
    """In `on_train_batch_end`: a validation may be due."""
    IN_STEP = "in a step"
    """Before the end of the step, such as where it raised: its batch is taken again."""
    VALIDATING = "in a validation"
    VALIDATED = "at the end of a validation"
    BETWEEN_STEPS = "between steps"
    CUT_SHORT = "after an epoch that was cut short"
    """The fit has ended in the middle of an epoch, by `max_steps` or `should_stop`."""

    @property
    def is_within_epoch(self) -> bool:
        """Whether batches or hooks of the epoch are still to come."""
        return self not in (Place.NOT_BEGUN, Place.BETWEEN_EPOCHS, Place.EPOCH_END)


def place_of(trainer: pl.Trainer) -> Place:
    """Returns the point at which a Trainer is in its fit."""
    loop = trainer.fit_loop
    epochs: Any = loop.epoch_progress.total
    batches: Any = loop.epoch_loop.batch_progress
    # Lightning counts "ready" before a hook at the start, "started" after it, "processed" before
    # the hook at the end and "completed" after that (`loops/progress.py`). The differences tell the
    # place.
    if epochs.processed >= epochs.started:
        if epochs.completed < epochs.processed:
            return Place.EPOCH_END
        if epochs.ready > epochs.started or epochs.processed == 0:
            return Place.NOT_BEGUN
        return Place.CUT_SHORT if _was_cut_short(trainer) else Place.BETWEEN_EPOCHS
    if trainer.validating:
        validated = loop.epoch_loop.val_loop.batch_progress
        is_done = validated.is_last_batch and validated.current.completed == validated.current.ready
        return Place.VALIDATED if is_done else Place.VALIDATING
    if batches.total.processed > batches.total.completed:
        return Place.STEP_END
    if batches.total.ready > batches.total.completed:
        return Place.IN_STEP
    return Place.BETWEEN_STEPS


def go_to_next_epoch(trainer: pl.Trainer, place: Place) -> None:
    """Lets the loops begin an epoch as in a fit that was not resumed."""
    loop = trainer.fit_loop
    if place is Place.EPOCH_END:
        # What `FitLoop.on_advance_end` does after the hook in which the checkpoint was saved.
        if loop.epoch_loop._num_ready_batches_reached():
            loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        loop.epoch_progress.increment_completed()
    progress = loop.epoch_progress
    progress.total.reset_on_restart()
    progress.current.reset_on_restart()
    loop.restarting = False
    for each in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
        each.on_iteration_done()


def go_to_step_end(trainer: pl.Trainer, place: Place) -> Place:
    """Lets the loops continue after a step.

    Returns:
        What is still to do after the step; `Place.BETWEEN_STEPS` if there is nothing.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    if place is Place.CUT_SHORT:
        # The fit counted the epoch as done when it ended. With more steps to take it is not.
        epochs: Any
        for epochs in (loop.epoch_progress.total, loop.epoch_progress.current):
            epochs.processed -= 1
            epochs.completed -= 1
    if place is Place.STEP_END:
        progress.increment_completed()
    elif place is Place.IN_STEP:
        progress.total.reset_on_restart()
        progress.current.reset_on_restart()
    is_between = place in (Place.IN_STEP, Place.CUT_SHORT)
    return Place.BETWEEN_STEPS if is_between else place


def _was_cut_short(trainer: pl.Trainer) -> bool:
    loop = trainer.fit_loop.epoch_loop
    has_steps = _is_max_limit_reached(loop.global_step, loop.max_steps)
    return (has_steps or trainer.should_stop) and not loop._num_ready_batches_reached()


HOOK = "on_train_epoch_start"


def call_again(trainer: pl.Trainer) -> None:
    """Calls `on_train_epoch_start` of callbacks and module in an epoch that is resumed.

    The process that began the epoch called it, and what it set there, such as which weights train,
    is not set here. What it changes of the state that the checkpoint holds is restored.

    Args:
        trainer: Of a fit whose states are loaded, within an epoch.
    """
    with _kept(trainer):
        call._call_callback_hooks(trainer, HOOK)
        call._call_lightning_module_hook(trainer, HOOK)


@contextmanager
def _kept(trainer: pl.Trainer) -> Iterator[None]:
    """Restores after the block the state that a checkpoint holds."""
    if not _may_change(trainer):
        yield
        return
    host, device = host_random.take(), vendor.get_rng_state()
    # The card has room for copies, since there are no gradients yet, which are as large.
    tensors = [(each, each.detach().clone()) for each in _to_keep(trainer.lightning_module)]
    every: Any = trainer
    rates = [[_without_weights(each) for each in one.param_groups] for one in trainer.optimizers]
    schedulers = [config.scheduler for config in every.lr_scheduler_configs]
    callbacks = [each for each in every.callbacks if _keeps_state(each)]
    stateful = [*schedulers, *callbacks]
    states = [copy.deepcopy(each.state_dict()) for each in stateful]
    yield
    with torch.no_grad():
        for tensor, value in tensors:
            tensor.copy_(value)
    for optimizer, groups in zip(trainer.optimizers, rates, strict=True):
        # The hook may have added groups, which stay.
        for group, rate in zip(optimizer.param_groups, groups, strict=False):
            group.update(rate)
    for each, state in zip(stateful, states, strict=True):
        each.load_state_dict(state)
    host_random.put(host)
    vendor.set_rng_state(device)


def _may_change(trainer: pl.Trainer) -> bool:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return is_overridden(HOOK, trainer.lightning_module) or any(_overrides(c) for c in callbacks)


def _overrides(callback: pl.Callback) -> bool:
    # Callbacks that only show something need no copies of the weights.
    shows = isinstance(callback, (ProgressBar, LearningRateMonitor))
    return not shows and is_overridden(HOOK, callback, parent=pl.Callback)


def _keeps_state(callback: pl.Callback) -> bool:
    return _overrides(callback) and is_overridden("state_dict", callback, parent=pl.Callback)


def _to_keep(module: pl.LightningModule) -> list[Tensor]:
    """Returns trainable weights and buffers; copies of frozen weights might not fit the card."""
    weights = [each for each in module.parameters() if each.requires_grad]
    return [*weights, *module.buffers()]


def _without_weights(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
