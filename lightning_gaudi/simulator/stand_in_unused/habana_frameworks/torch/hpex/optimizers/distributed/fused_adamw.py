"""Implements AdamW by one operator, with gradients that are handed to it."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch

from ....._missing import missing
from ....utils.internal import is_lazy
from .._groups import Moments, check_range, moments_dtypes, on_device


class FusedAdamW:
    """The formula of hpex.optimizers.FusedAdamW in the form that torch.distributed.optim calls.

    It is no torch.optim.Optimizer: it has one group, no zero_grad and no state_dict. The bias
    correction is that of the first parameter that has a gradient, for all.

    Args:
        params: Parameters.
        lr: Learning rate.
        betas: Decay of the averages of gradient and squared gradient.
        eps: Added to the denominator.
        weight_decay: Decay of the weights, times the learning rate.
        _allow_empty_param_list: Whether there may be no parameters.
        moments_dtype: The averages' dtype, or one for each; by default the parameter's.

    Raises:
        ValueError: A setting is out of range, or there are no parameters.

    Source: Gaudi PyTorch bridge 1.19, hpex/optimizers/distributed/FusedAdamW.py.
    """

    def __init__(
        self,
        params: list[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        _allow_empty_param_list: bool = False,
        moments_dtype: Moments = None,
    ) -> None:
        check_range("lr", lr)
        check_range("betas[0]", betas[0], below=1)
        check_range("betas[1]", betas[1], below=1)
        check_range("eps", eps)
        check_range("weight_decay", weight_decay)
        if not params and not _allow_empty_param_list:
            raise ValueError("FusedAdamW got no parameters. Pass a list of at least one.")
        self.moments_dtype = moments_dtypes("distributed.FusedAdamW", moments_dtype)
        self.defaults = {
            "lr": lr,
            "eps": eps,
            "beta1": betas[0],
            "beta2": betas[1],
            "weight_decay": weight_decay,
        }
        self.state: dict[torch.Tensor, dict[str, Any]] = {}
        self.param_group = {"params": params}

    def step_param(self, param: torch.Tensor, grad: torch.Tensor | None) -> NoReturn:
        """Raises, as the vendor's does, because it is not supported.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("distributed.FusedAdamW has no step_param(). Call step(gradients).")

    @torch.no_grad()
    def step(self, gradients: list[torch.Tensor | None]) -> None:
        """Updates the parameters that have gradients.

        Args:
            gradients: One for each parameter, or None.

        Raises:
            ValueError: There are more or fewer gradients than parameters.
        """
        params = self.param_group["params"]
        if len(params) != len(gradients):
            raise ValueError(f"Got {len(gradients)} gradients for {len(params)} parameters.")
        rows = [
            (gradient, param.data, self._state_of(param))
            for param, gradient in zip(params, gradients, strict=True)
            if gradient is not None
        ]
        if rows:
            self._update(rows)

    def _state_of(self, param: torch.Tensor) -> dict[str, Any]:
        state = self.state.setdefault(param, {"step": torch.tensor(0.0)})
        for name, dtype in zip(("exp_avg", "exp_avg_sq"), self.moments_dtype, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(param, dtype=dtype)
        state["step"] += 1
        return state

    def _update(self, rows: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]) -> None:
        gradients, weights, states = (list(column) for column in zip(*rows, strict=True))
        settings, step = self.defaults, states[0]["step"].item()
        beta1, beta2, lr = settings["beta1"], settings["beta2"], settings["lr"]
        size = lr * math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)
        decay, device = 1.0 - settings["weight_decay"] * lr, weights[0].device
        as_tensor = on_device([decay], torch.float32, device)
        averages = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        torch.ops.hpu.optimizer_adamw(
            gradients, weights, *averages, on_device([-size], torch.float32, device), beta1, beta2,
            settings["eps"], *((decay,) if is_lazy() else (as_tensor, decay != 1.0)),
        )  # fmt: skip


__getattr__ = missing(__name__)
