"""`FiniteLosses` looks for NaN and inf in the losses of many steps at once, not in each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_STEPS = 1000
"""The largest number of steps after which losses are looked at."""

NUM_LEFT_OUT = 2
"""How many steps in a row may have such a loss where losses are scaled, as in float16.

A step whose gradients overflow is left out there, and the scale is lowered: the weights stay as
they were."""


class LossNotFiniteError(ArithmeticError):
    """Says that a loss was NaN or infinite; the message names step and rank."""


class BadLoss(NamedTuple):
    """A loss that is not finite."""

    step: int
    """The step of the optimizer that it was for, from 1 on."""
    value: float


class FiniteLosses:
    """Holds the losses of an interval of steps on the device, where nobody waits for them."""

    def __init__(self, num_left_out: int = 0) -> None:
        """Starts without losses.

        Args:
            num_left_out: How many steps in a row may have a loss that is not finite.
        """
        self.num_left_out = num_left_out
        self.left_out: BadLoss | None = None
        self._bad_steps: list[BadLoss] = []
        self._losses: list[Tensor] = []
        self._steps: list[int] = []
        self._num_seen = 0
        self._usual_num: int | None = None

    def note(self, loss: Tensor, step: int) -> None:
        """Remembers a loss; it stays where it is, and nothing is computed.

        Args:
            loss: Has any shape, on any device; the elements of a larger one are summed up.
            step: The step of the optimizer that it is for, from 1 on.
        """
        # Without its graph, whose activations would otherwise stay in memory until the next look.
        loss = loss.detach()
        if hasattr(loss, "to_local"):  # a DTensor, of which this rank looks at its own part
            loss = loss.to_local()
        self._losses.append(loss if loss.numel() == 1 else loss.sum())
        self._steps.append(step)

    def first_bad(self, *, ends_interval: bool, is_lazy: bool) -> BadLoss | None:
        """Returns the first loss since the last look that is not finite; waits for the device.

        Where steps may be left out, it is the first loss of too many in a row, and `left_out` is
        the last one whose step was left out.

        Args:
            ends_interval: Whether an interval ends here; else a checkpoint is saved within one.
            is_lazy: Whether the card runs in lazy mode.
        """
        losses, steps = self._losses[self._num_seen :], self._steps[self._num_seen :]
        num_losses = len(self._losses)
        if ends_interval and self._usual_num is None:
            self._usual_num = num_losses
        if not losses:
            values = []
        elif not is_lazy:
            values = _together(losses)
        # In lazy mode a copy of several losses is a graph of its own for each number of them. Only
        # the number that an interval usually has is worth one; other losses are copied one by one.
        elif ends_interval and num_losses == self._usual_num:
            values = _together(self._losses)[self._num_seen :]
        else:
            values = [float(loss.cpu()) for loss in losses]
        self._num_seen = num_losses
        if ends_interval:
            self._losses, self._steps, self._num_seen = [], [], 0
        return self._first_of_too_many(steps, values)

    def _first_of_too_many(self, steps: Sequence[int], values: Sequence[float]) -> BadLoss | None:
        for step, value in zip(steps, values, strict=True):
            row = self._bad_steps
            if row and step > row[-1].step + 1:
                row.clear()  # the step between was finite
            if math.isfinite(value) or (row and row[-1].step == step):
                continue
            row.append(BadLoss(step, value))
            if len(row) > self.num_left_out:
                first = row[0]
                row.clear()
                return first
            self.left_out = row[-1]
        return None


def _together(losses: Sequence[Tensor]) -> list[float]:
    """Copies all losses to the host at once, so that the host waits one time."""
    values: list[float] = torch.cat([loss.reshape(1) for loss in losses]).tolist()
    return values


def not_finite(found: Sequence[BadLoss | None], ended_after: int) -> LossNotFiniteError:
    """Returns the error that names the first loss that was not finite.

    Args:
        found: What each rank has found, by rank; at least one is a loss.
        ended_after: The last step that the optimizer has made.
    """
    bad, rank = min((bad, rank) for rank, bad in enumerate(found) if bad is not None)
    return LossNotFiniteError(
        f"The loss of step {bad.step} on rank {rank} is {bad.value}: the run ends after step "
        f"{ended_after}, and no checkpoint since step {bad.step} is kept. Look at the batch of "
        "that step, lower the learning rate or clip gradients, and go on from the checkpoint "
        'before; or pass reliability="stop_on_nan=off" to the strategy to train on.'
    )


def left_out(bad: BadLoss) -> str:
    """Returns the message, said once, on a loss whose step changes no weights."""
    return (
        f"the loss of step {bad.step} is {bad.value}. Where losses are scaled, in float16, its "
        f"step is left out and the run goes on; {NUM_LEFT_OUT + 1} such steps in a row end it"
    )
