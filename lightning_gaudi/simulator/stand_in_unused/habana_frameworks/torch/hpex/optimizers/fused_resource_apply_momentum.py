"""Implements TensorFlow's momentum by one operator a group."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ...._missing import missing
from ._groups import GroupOptimizer, check_range, with_gradients

_NAME = "FusedResourceApplyMomentum"


class FusedResourceApplyMomentum(GroupOptimizer):
    """TensorFlow's momentum over steps that hold the learning rate: the one to put into FusedLars.

    A step d moves the buffer, `m = momentum * m - d`, and the buffer the weight, `w = w + m`. The
    first step of a group has the wrong sign: `m = d`, `w = w + d`. Without momentum every step has.
    Nothing of `lr`, `weight_decay` and `nesterov` enters the update.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, which FusedLars reads.
        momentum: Decay of the buffers. At 0 each step adds the gradient, and a warning says so.
        weight_decay: Decay of the weights, which FusedLars reads.
        nesterov: No effect; a warning says so.

    Raises:
        ValueError: A setting is out of range.
        RuntimeError: In a step, some parameters of a group have their first gradient and others
            had it before.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedResourceApplyMomentum; the same in
    1.24.0. TensorFlow's operator, tf.raw_ops.ResourceApplyKerasMomentum, starts from m = 0.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in defaults.items():
            check_range(name, value)
        if nesterov and momentum <= 0:
            raise ValueError(f"nesterov=True needs a momentum above 0, got momentum={momentum}.")
        if nesterov:
            warnings.warn(f"{_NAME}: nesterov=True has no effect, as on a Gaudi.", stacklevel=2)
        if momentum == 0:
            warnings.warn(
                f"{_NAME}: with momentum=0 every step adds the gradient to the weights, which "
                "climbs, as on a Gaudi. Pass a momentum.",
                stacklevel=2,
            )
        super().__init__(params, defaults | {"nesterov": nesterov})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def _update(self, group: dict[str, Any]) -> None:
        rows = with_gradients(_NAME, group)
        states = [self.state[p] for p, _ in rows]
        buffers = [s["momentum_buffer"] for s in states if s.get("momentum_buffer") is not None]
        if not buffers:
            for (parameter, gradient), state in zip(rows, states, strict=True):
                parameter.data.add_(gradient)
                state["momentum_buffer"] = gradient.clone() if group["momentum"] != 0 else None
            return
        if len(buffers) < len(rows):
            raise RuntimeError(
                f"{_NAME}: {len(rows) - len(buffers)} of {len(rows)} parameters of a group have "
                "their first gradient, the others had it before, and one operator cannot update "
                "both. Give every parameter of a group a gradient in its first step."
            )
        weights = (p.data for p, _ in rows)
        torch.ops.hpu.optimizer_resource_apply_momentum(
            list(itertools.chain(*zip(weights, buffers, strict=True))),
            [gradient for _, gradient in rows],
            group["momentum"],
        )


__getattr__ = missing(__name__)
