"""Decides which steps are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.profiler import ProfilerAction

Schedule = Callable[[int], ProfilerAction]
"""A function from the number of a step, from 0 on, to what to do in it."""
AskedSchedule = Schedule | Literal["default"] | None
"""The argument of `HPUProfiler`; None records everything."""


def default_schedule(num_planned: float) -> Schedule | None:
    """Returns a schedule for steps 2 to 4, or None, for everything, if there are fewer than 5."""
    if num_planned < 5:
        return None
    return torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)


def schedule_for(asked: AskedSchedule, trainer: pl.Trainer | None, stage: str) -> Schedule | None:
    """Returns the schedule of a run.

    Args:
        asked: The user's argument.
        trainer: Has its data loaders already; None outside a Trainer.
        stage: "fit", "validate", "test" or "predict".
    """
    if asked != "default":
        return asked
    return default_schedule(math.inf if trainer is None else planned_steps(trainer, stage))


def planned_steps(trainer: pl.Trainer, stage: str) -> float:
    """Returns how many steps a run is to have, infinity included.

    Args:
        trainer: Has its data loaders already.
        stage: "fit", "validate", "test" or "predict".
    """
    if stage != "fit":
        prefix = {"validate": "val", "test": "test", "predict": "predict"}[stage]
        return float(sum(getattr(trainer, f"num_{prefix}_batches")))
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    batches, a_step = trainer.num_training_batches, trainer.accumulate_grad_batches
    return float(min(batches * epochs, steps * a_step))


def check_schedule(asked: Any) -> None:
    """Refuses a schedule that would make torch's profiler fail in the middle of a run.

    Raises:
        MisconfigurationException: It is not a schedule.
    """
    if asked is None or asked == "default":
        return
    if not callable(asked) or not isinstance(asked(0), ProfilerAction):
        raise MisconfigurationException(
            f"HPUProfiler(schedule={asked!r}) must take the number of a step and return a "
            "torch.profiler.ProfilerAction. Build it with torch.profiler.schedule(...); pass None "
            "to record everything, or leave it out for steps 2 to 4."
        )
