"""Implements AdamW by one operator a group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from ...._missing import missing
from ...utils.internal import is_lazy
from ._groups import (
    GroupOptimizer,
    Moments,
    check_groups,
    check_range,
    moments_dtypes,
    next_step,
    on_device,
    with_gradients,
)


class FusedAdamW(GroupOptimizer):
    """AdamW whose epsilon is added before the bias correction.

    A step is `w = w * (1 - weight_decay * lr) - s * m / (sqrt(v) + eps)` with
    `s = lr * sqrt(1 - beta2^t) / (1 - beta1^t)`. torch's AdamW divides sqrt(v) by
    sqrt(1 - beta2^t) first; the two agree as far as eps is small beside sqrt(v). The step count t
    is the group's, in `param_groups[i]["step"]`.

    Args:
        params: Parameters or groups of them; a group must not be empty.
        lr: Learning rate.
        betas: Decay of the averages of gradient and squared gradient.
        eps: Added to the denominator.
        weight_decay: Decay of the weights, times the learning rate.
        bias_correction: Whether to correct the averages' start from zero.
        moments_dtype: The averages' dtype, or one for each; by default the parameter's.

    Raises:
        ValueError: A setting is out of range or a group is empty.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedAdamW.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        moments_dtype: Moments = None,
    ) -> None:
        check_range("lr", lr)
        check_range("betas[0]", betas[0], below=1)
        check_range("betas[1]", betas[1], below=1)
        check_range("eps", eps)
        self.moments_dtype = moments_dtypes("FusedAdamW", moments_dtype)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults)
        check_groups(self)

    def _lists(self, group: dict[str, Any]) -> tuple[list[torch.Tensor], ...] | None:
        """Returns gradients, weights and averages of the group; None without gradients."""
        rows = []
        for parameter, gradient in with_gradients("FusedAdamW", group):
            state = self._state_of(parameter)
            rows.append((gradient, parameter.data, state["exp_avg"], state["exp_avg_sq"]))
        return tuple(list(column) for column in zip(*rows, strict=True)) if rows else None

    def _state_of(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name, dtype in zip(("exp_avg", "exp_avg_sq"), self.moments_dtype, strict=True):
                state[name] = torch.zeros(
                    parameter.shape, dtype=dtype or parameter.dtype, device=parameter.device
                )
        return state

    def _update(self, group: dict[str, Any]) -> None:
        lists = self._lists(group)
        if lists is None:
            return
        step = next_step(group)
        beta1, beta2 = group["betas"]
        step_size = group["lr"]
        if group.get("bias_correction", group.get("correct_bias", True)):
            step_size *= math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)
        decay = 1.0 - group["weight_decay"] * group["lr"]
        dtype, device = lists[1][0].dtype, lists[1][0].device
        neg_step = on_device([-step_size], dtype, device)
        decay_args = (decay,) if is_lazy() else (on_device([decay], dtype, device), decay != 1.0)
        torch.ops.hpu.optimizer_adamw(*lists, neg_step, beta1, beta2, group["eps"], *decay_args)


__getattr__ = missing(__name__)
