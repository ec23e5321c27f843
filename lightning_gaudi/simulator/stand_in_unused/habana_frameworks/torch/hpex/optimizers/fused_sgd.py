"""Implements stochastic gradient descent by one operator a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import required

from ...._missing import missing
from ...core.step_closure import _mark_step_if_lazy
from ._groups import GroupOptimizer, check_groups, check_range, on_device, with_gradients


class FusedSGD(GroupOptimizer):
    """torch.optim.SGD but for a dampened first step; computed in fp32.

    The momentum buffers start from zero, so that dampening takes its part of the first gradient
    too, which torch's SGD takes whole. Without dampening the two agree. In a step every group needs
    a gradient.

    Args:
        params: Parameters or groups of them; a group must not be empty.
        lr: Learning rate; it has to be given.
        momentum: Decay of the momentum buffers; 0 for none.
        weight_decay: Decay of the weights, as part of the gradient.
        dampening: The part of the gradient that stays out of the buffers.
        nesterov: Whether to look a step ahead; needs a momentum and no dampening.

    Raises:
        TypeError: There is no learning rate.
        ValueError: A setting is out of range or a group is empty.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedSGD; the same in 2025
    (commit f186e3d).
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = required,
        momentum: float = 0,
        weight_decay: float = 0,
        dampening: float = 0,
        nesterov: bool = False,
    ) -> None:
        if lr is required:
            raise TypeError("FusedSGD has no default learning rate. Pass lr=...")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "dampening": dampening,
        }
        for name, value in defaults.items():
            check_range(name, value)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                "nesterov=True needs a momentum above 0 and no dampening, got "
                f"momentum={momentum}, dampening={dampening}."
            )
        super().__init__(params, defaults | {"nesterov": nesterov})
        check_groups(self)
        # It stays 0, as the vendor's does, so that to the kernel no step is the first.
        self.step_t = on_device([0], torch.int32)
        _mark_step_if_lazy()

    def _update(self, group: dict[str, Any]) -> None:
        rows = with_gradients("FusedSGD", group)
        lists = [gradient for _, gradient in rows], [p.data for p, _ in rows]
        learning_rate = on_device([group["lr"]], torch.float32)
        if group["momentum"] == 0:
            torch.ops.hpu.optimizer_sgd(
                *lists,
                learning_rate,
                group["weight_decay"],
                group["momentum"],
                group["dampening"],
                group["nesterov"],
            )
            return
        torch.ops.hpu.optimizer_sgd_momentum(
            *lists,
            [self._momentum_buffer(p) for p, _ in rows],
            self.step_t,
            learning_rate,
            on_device(group["momentum"], torch.float32),
            group["weight_decay"],
            group["dampening"],
            group["nesterov"],
        )

    def _momentum_buffer(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns the parameter's buffer, in fp32 whatever the parameter's dtype."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros(
                parameter.shape, dtype=torch.float32, device=parameter.device
            )
        return state["momentum_buffer"]


__getattr__ = missing(__name__)
