"""Where in Lightning's loops a checkpoint was saved, and how they go on from there.

Lightning goes on at the next batch, whatever was left to do after the one before; see
`lightning/pytorch/loops/training_epoch_loop.py`, `reset` and `advance`. Nor does it call
`on_train_epoch_start` of that epoch again (`call_again`).
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
    """Where a fit was when it saved a checkpoint."""

    NOT_BEGUN = "not begun"
    BETWEEN_EPOCHS = "between epochs"
    EPOCH_END = "at the end of an epoch"
    """In `on_train_epoch_end`: schedulers that wait for a metric of the epoch have not stepped."""
    STEP_END = "at the end of a step"
    """In `on_train_batch_end`: a validation may be due."""
    IN_STEP = "in a step"
    """Before its end, as where it raised: the batch is taken again."""
    VALIDATING = "in a validation"
    VALIDATED = "at the end of a validation"
    BETWEEN_STEPS = "between steps"
    CUT_SHORT = "after an epoch that was cut short"
    """The fit has ended in the middle of an epoch, since it had its steps."""

    @property
    def is_within_epoch(self) -> bool:
        """Whether the epoch has batches, or hooks, to come."""
        return self not in (Place.NOT_BEGUN, Place.BETWEEN_EPOCHS, Place.EPOCH_END)


def place_of(trainer: pl.Trainer) -> Place:
    """Returns where a Trainer is in its fit."""
    loop = trainer.fit_loop
    epochs: Any = loop.epoch_progress.total
    batches: Any = loop.epoch_loop.batch_progress
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
    """Lets the loops begin an epoch as they do in a fit that was not resumed."""
    loop = trainer.fit_loop
    if place is Place.EPOCH_END:
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
    """Lets the loops go on behind a step.

    Returns:
        What was still to do after it: `Place.BETWEEN_STEPS` where nothing was.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    if place is Place.CUT_SHORT:
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
    """Calls `on_train_epoch_start` of the callbacks and the module, in the epoch that goes on.

    It was called in the process that began the epoch, and what it set there (what trains, a factor,
    the batches to accumulate) is not set here. What it changes of what the checkpoint has kept is
    put back as it was.

    Args:
        trainer: Of a fit whose states are loaded, within an epoch.
    """
    with _kept(trainer):
        call._call_callback_hooks(trainer, HOOK)
        call._call_lightning_module_hook(trainer, HOOK)


@contextmanager
def _kept(trainer: pl.Trainer) -> Iterator[None]:
    """Leaves behind the `with` block what a checkpoint keeps as it was before it."""
    if not _may_change(trainer):
        yield
        return
    host, device = host_random.take(), vendor.get_rng_state()
    # There is room for copies: the gradients, which are as large, are still to come.
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
    shows = isinstance(callback, (ProgressBar, LearningRateMonitor))
    return not shows and is_overridden(HOOK, callback, parent=pl.Callback)


def _keeps_state(callback: pl.Callback) -> bool:
    return _overrides(callback) and is_overridden("state_dict", callback, parent=pl.Callback)


def _to_keep(module: pl.LightningModule) -> list[Tensor]:
    """Returns weights that train, and buffers; copies of frozen weights might not fit."""
    weights = [each for each in module.parameters() if each.requires_grad]
    return [*weights, *module.buffers()]


def _without_weights(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
