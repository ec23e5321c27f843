"""Implements Adagrad by one kernel a group, in lazy mode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...._missing import missing
from ..._ops.gradient_descent import fused_adagrad
from ...core.step_closure import _mark_step_if_lazy
from ...utils.internal import is_lazy
from ._groups import check_groups, check_range, on_device, with_gradients

_FP32 = 1e-6
"""The relative precision with which the tensor `lr_t` holds a rate."""


class FusedAdagrad(torch.optim.Optimizer):
    """torch.optim.Adagrad with a learning rate that never changes, in lazy mode alone.

    The constructor's `lr` holds for every group, and a later change of `param_groups[i]["lr"]`, as
    by a scheduler, has no effect: the group's tensor `lr_t` counts. A warning says so, once.

    Args:
        params: Parameters or groups of them; a group must not be empty.
        lr: Learning rate.
        lr_decay: How much of the learning rate each step takes away.
        weight_decay: Decay of the weights, as part of the gradient.
        initial_accumulator_value: Where the sums of squares start.
        eps: Added to the denominator.

    Raises:
        ValueError: A setting is out of range or a group is empty.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedAdagrad, whose kernel exists in lazy
    mode only; the same in 1.24.0.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        for name, value in defaults.items():
            check_range(name, value)
        super().__init__(params, defaults)
        check_groups(self)
        self._watch_rates([lr] * len(self.param_groups))
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.full_like(
                    parameter, initial_accumulator_value, requires_grad=False
                )
            group["lr_t"] = on_device([lr], torch.float32)
            group["step_t"] = on_device([0], torch.int32)
        _mark_step_if_lazy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._watch_rates([float(group["lr_t"]) for group in self.param_groups])

    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> None:
        """Updates the parameters that have gradients; every group needs one.

        Args:
            closure: Computes the loss, which is dropped, and the gradients.

        Raises:
            RuntimeError: This is eager mode, or a group came after the optimizer was made.
        """
        if not is_lazy():
            raise RuntimeError(
                "FusedAdagrad has a kernel in lazy mode only, and this is eager mode. Use "
                "torch.optim.Adagrad, or set PT_HPU_LAZY_MODE=1."
            )
        if closure is not None:
            closure()
        for index, group in enumerate(self.param_groups):
            _mark_step_if_lazy()
            self._check(index, group)
            self._update(group)

    def _check(self, index: int, group: dict[str, Any]) -> None:
        if "step_t" not in group:
            raise RuntimeError(
                f"FusedAdagrad: parameter group {index} was added after the optimizer was made, "
                "and so has no state. Give all groups to FusedAdagrad(...)."
            )
        rate = self._rates[index]
        if not (self._has_warned or math.isclose(group["lr"], rate, rel_tol=_FP32)):
            self._has_warned = True
            warnings.warn(
                f"FusedAdagrad: lr={group['lr']} of parameter group {index} has no effect; the "
                f"{rate} that the optimizer was made with counts, as on a Gaudi. "
                "Use torch.optim.Adagrad for rates that differ or change.",
                stacklevel=4,
            )

    def _watch_rates(self, rates: list[float]) -> None:
        """Remembers the rates that count for the groups."""
        self._rates = rates
        self._has_warned = False

    def _update(self, group: dict[str, Any]) -> None:
        rows = with_gradients("FusedAdagrad", group)
        group["step_t"].add_(1)
        fused_adagrad(
            [gradient for _, gradient in rows],
            [p.data for p, _ in rows],
            [self.state[p]["sum"] for p, _ in rows],
            group["step_t"],
            group["lr_t"],
            group["weight_decay"],
            group["lr_decay"],
            group["eps"],
        )


__getattr__ = missing(__name__)
