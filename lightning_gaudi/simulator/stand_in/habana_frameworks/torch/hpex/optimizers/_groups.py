"""What the fused optimizers ask of parameter groups."""

from __future__ import annotations

from typing import Any

import torch


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Check that every group has parameters: an operator cannot take an empty list.

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


def check_range(name: str, value: float, below: float | None = None) -> None:
    """Check that a setting is at least 0 and, if given, under `below`.

    Raises:
        ValueError: It is not.
    """
    if value < 0 or (below is not None and value >= below):
        limits = "at least 0" if below is None else f"at least 0 and under {below}"
        raise ValueError(f"{name}={value} must be {limits}.")


def dense_gradient(name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    """The parameter's gradient, without its history.

    Raises:
        RuntimeError: It is sparse.
    """
    gradient = parameter.grad.data
    if gradient.is_sparse:
        raise RuntimeError(
            f"{name} cannot use sparse gradients. Build the embedding with sparse=False."
        )
    return gradient


def next_step(group: dict[str, Any]) -> int:
    """Count a step of the group, in `group["step"]`, and return its number from 1."""
    group["step"] = group.get("step", 0) + 1
    return group["step"]
