"""Has what the fused optimizers share for their parameter groups."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch

from ...._missing import not_simulated
from ..._ops.fp8 import FP8_DTYPES
from ...core.step_closure import _mark_step_if_lazy


class GroupOptimizer(torch.optim.Optimizer, abc.ABC):
    """An optimizer that updates one group after the other."""

    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Updates the parameters that have gradients; in lazy mode every group in its own graph.

        Args:
            closure: Computes the loss and the gradients.

        Returns:
            The closure's loss.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            _mark_step_if_lazy()
            self._update(group)
        _mark_step_if_lazy()
        return loss

    @abc.abstractmethod
    def _update(self, group: dict[str, Any]) -> None:
        """Updates the group's parameters that have gradients."""


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Checks that every group has parameters: an operator cannot take an empty list.

    Raises:
        ValueError: A group is empty.
    """
    name = type(optimizer).__name__
    for i, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            raise ValueError(
                f"{name}: parameter group {i} of {len(optimizer.param_groups)} is empty, which "
                "Gaudi's fused optimizers cannot update. Leave out groups without parameters."
            )


Moments = torch.dtype | tuple[torch.dtype, torch.dtype] | None


def moments_dtypes(optimizer: str, asked: Moments) -> tuple[torch.dtype | None, ...]:
    """Returns the dtypes of both averages; None stands for the parameter's.

    Raises:
        NotSimulatedError: One is fp8.
    """
    pair = asked if isinstance(asked, tuple) else (asked, asked)
    if any(dtype in FP8_DTYPES for dtype in pair):
        raise not_simulated(f"{optimizer} with moments_dtype={asked}")
    return pair


def check_range(name: str, value: float, below: float | None = None) -> None:
    """Checks that a setting is at least 0 and, if given, under `below`.

    Raises:
        ValueError: It is not.
    """
    if not value >= 0 or (below is not None and value >= below):
        limits = "at least 0" if below is None else f"at least 0 and under {below}"
        raise ValueError(f"{name}={value} must be {limits}.")


def dense_gradient(name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the parameter's gradient, without its history.

    Raises:
        RuntimeError: It is sparse.
    """
    gradient = parameter.grad.data
    if gradient.is_sparse:
        raise RuntimeError(
            f"{name} cannot use sparse gradients. Build the embedding with sparse=False."
        )
    return gradient


def with_gradients(
    name: str, group: dict[str, Any]
) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Returns the group's parameters that have gradients, with these.

    Raises:
        RuntimeError: A gradient is sparse.
    """
    return [(p, dense_gradient(name, p)) for p in group["params"] if p.grad is not None]


def on_device(
    value: float | list[float],
    dtype: torch.dtype | None = None,
    device: torch.device | str = "hpu",
) -> torch.Tensor:
    """Returns a number or a list of them as a tensor, sent without waiting for the device."""
    return torch.tensor(value, dtype=dtype).to(device, non_blocking=True)


def next_step(group: dict[str, Any]) -> int:
    """Counts a step of the group, in `group["step"]`, and returns its number from 1."""
    group["step"] = group.get("step", 0) + 1
    return group["step"]
