"""`FiniteLosses`: losses that are looked at once in many steps, not in each, for NaN and inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_STEPS = 1000
"""After how many steps losses are looked at, at the latest."""


class LossNotFiniteError(ArithmeticError):
    """A loss was NaN or infinite; the message names step and rank."""


class BadLoss(NamedTuple):
    """A loss that is not finite."""

    step: int
    """The step of the optimizer that it was for, from 1 on."""
    value: float


class FiniteLosses:
    """The losses of an interval of steps, on the device, for which nobody waits."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._steps: list[int] = []
        self._num_seen = 0
        self._usual_num: int | None = None

    def note(self, loss: Tensor, step: int) -> None:
        """Remember a loss; it stays where it is, and nothing is computed.

        Args:
            loss: Of any shape, on any device; more than one element are summed up.
            step: The step of the optimizer that it is for, from 1 on.
        """
        loss = loss.detach()
        if hasattr(loss, "to_local"):  # of a DTensor, what this rank has
            loss = loss.to_local()
        self._losses.append(loss if loss.numel() == 1 else loss.sum())
        self._steps.append(step)

    def first_bad(self, *, ends_interval: bool, is_lazy: bool) -> BadLoss | None:
        """The first loss that is not finite of those that nobody has looked at; waits for all.

        Args:
            ends_interval: Whether another interval begins; else a checkpoint is due within one.
            is_lazy: In lazy mode to copy losses together is a graph for each number of them. So it
                is done for the number that an interval usually has, and others come one by one.
        """
        losses, steps = self._losses[self._num_seen :], self._steps[self._num_seen :]
        num_losses = len(self._losses)
        if ends_interval and self._usual_num is None:
            self._usual_num = num_losses
        if not losses:
            values = []
        elif not is_lazy:
            values = _together(losses)
        elif ends_interval and num_losses == self._usual_num:
            values = _together(self._losses)[self._num_seen :]
        else:
            values = [float(loss.cpu()) for loss in losses]
        self._num_seen = num_losses
        if ends_interval:
            self._losses, self._steps, self._num_seen = [], [], 0
        pairs = zip(steps, values, strict=True)
        return next((BadLoss(*pair) for pair in pairs if not math.isfinite(pair[1])), None)


def _together(losses: Sequence[Tensor]) -> list[float]:
    values: list[float] = torch.cat([loss.reshape(1) for loss in losses]).tolist()
    return values


def not_finite(found: Sequence[BadLoss | None], ended_after: int) -> LossNotFiniteError:
    """The error that names the first loss that was not finite.

    Args:
        found: By rank; at least one is a loss.
        ended_after: The step of the optimizer that was the last.
    """
    bad, rank = min((bad, rank) for rank, bad in enumerate(found) if bad is not None)
    return LossNotFiniteError(
        f"The loss of step {bad.step} on rank {rank} is {bad.value}: the run ends after step "
        f"{ended_after}, and no checkpoint since step {bad.step} is kept. Look at the batch of "
        "that step, lower the learning rate or clip gradients, and go on from the checkpoint "
        'before; or pass reliability="stop_on_nan=off" to the strategy to train on.'
    )
