"""Where in Lightning's loops a checkpoint was saved, and how they go on from there.

Lightning goes on at the next batch, whatever was left to do after the one before; see
`lightning/pytorch/loops/training_epoch_loop.py`, `reset` and `advance`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.utilities import _is_max_limit_reached


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
