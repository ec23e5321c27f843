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
    """The losses since somebody last looked at them, on the device, for which nobody waits."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._steps: list[int] = []

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

    def first_bad(self, *, at_once: bool) -> BadLoss | None:
        """The first loss that is not finite, and forget all; waits for the device.

        Args:
            at_once: Whether to copy them together, which is a graph for each number of them in
                lazy mode; otherwise one after the other.
        """
        losses, steps = self._losses, self._steps
        self._losses, self._steps = [], []
        if not losses:
            return None
        if at_once:
            values = torch.cat([loss.reshape(1) for loss in losses]).tolist()
        else:
            values = [float(loss.cpu()) for loss in losses]
        pairs = zip(steps, values, strict=True)
        return next((BadLoss(*pair) for pair in pairs if not math.isfinite(pair[1])), None)


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
