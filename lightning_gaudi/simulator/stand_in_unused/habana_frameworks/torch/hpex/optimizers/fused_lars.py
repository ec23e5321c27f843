"""Implements LARS, which gives every weight a learning rate, around another optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ...._missing import missing
from ...core.step_closure import _mark_step_if_lazy
from ...utils.internal import is_lazy
from ._groups import on_device, with_gradients


class FusedLars(torch.optim.Optimizer):
    """Turns gradients into LARS's steps, and lets another optimizer take them.

    A gradient becomes `lr * ratio * (g + weight_decay * w)` with
    `ratio = eeta * |w| / (|g| + weight_decay * |w| + eps)`, or `lr * g` where the mask is 0. The
    learning rate is in the step already, so that the optimizer has to be one that applies none:
    FusedResourceApplyMomentum, or any with `lr=1`. Weight decay is kept from it, too.

    `param_groups` and `state` are the wrapped optimizer's, until a state is loaded.

    Args:
        optimizer: The optimizer that takes the steps. Its groups give `lr` and `weight_decay`.
        skip_mask: 1 for each parameter that takes the ratio, 0 for those that skip it (biases,
            norms). Every group reads it from its first entry.
        eeta: The paper's trust coefficient.
        eps: Added to the denominator.

    Raises:
        ValueError: The mask is too short for a group.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedLars; the same in 2025
    (commit f186e3d).
    You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017 (arXiv 1708.03888).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        skip_mask: Sequence[int],
        eeta: float = 0.001,
        eps: float = 1e-8,
    ) -> None:
        _check_mask(skip_mask, optimizer.param_groups)
        self.optim = optimizer
        self.skip_mask = skip_mask
        self.eeta = eeta
        self.eps = eps
        optimizer.defaults.update(skip_mask=skip_mask, eeta=eeta, eps=eps)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = optimizer.state

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Sets gradients to zeros, or to None.

        Args:
            set_to_none: Whether to set them to None.
        """
        self.optim.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads into this optimizer's own groups and state, which the wrapped one does not see.

        Args:
            state_dict: What `state_dict()` returned.
        """
        warnings.warn(
            "FusedLars.load_state_dict does not reach the wrapped "
            f"{type(self.optim).__name__}, whose momentum and learning rate count, as on a Gaudi. "
            "Load the wrapped optimizer's state before wrapping it.",
            stacklevel=2,
        )
        super().load_state_dict(state_dict)

    def step(self) -> None:
        """Scales the gradients in place and lets the wrapped optimizer step; takes no closure.

        In lazy mode every group is a graph of its own, and the host waits once for each.
        """
        # Weight decay is in the step already: the wrapped optimizer must not apply it again.
        groups = self.optim.param_groups
        decays = [group.get("weight_decay", 0) for group in groups]
        try:
            for group, weight_decay in zip(groups, decays, strict=True):
                group["weight_decay"] = 0
                self._scale(group, weight_decay)
            self.optim.step()
        finally:
            for group, weight_decay in zip(groups, decays, strict=True):
                group["weight_decay"] = weight_decay

    def _scale(self, group: dict[str, Any], weight_decay: float) -> None:
        rows = with_gradients("FusedLars", group)
        if not rows:
            return
        masks = [
            int(mask)
            for mask, p in zip(self.skip_mask, group["params"], strict=False)
            if p.grad is not None
        ]
        _mark_step_if_lazy()
        learning_rate = on_device(group["lr"], torch.float32, rows[0][1].device)
        if is_lazy():
            # The vendor's lazy kernel takes a number, and so waits for it: that is counted.
            learning_rate.item()
        torch.ops.hpu.optimizer_lars(
            [p.data for p, _ in rows],
            [gradient for _, gradient in rows],
            masks,
            self.eeta,
            weight_decay,
            self.eps,
            learning_rate,
        )
        _mark_step_if_lazy()


def _check_mask(skip_mask: Sequence[int], groups: list[dict[str, Any]]) -> None:
    longest = max(len(group["params"]) for group in groups)
    if len(skip_mask) < longest:
        raise ValueError(
            f"FusedLars: skip_mask has {len(skip_mask)} entries, a group has {longest} "
            "parameters. Give an entry for each parameter of a group."
        )
    if len(skip_mask) > longest:
        warnings.warn(
            f"FusedLars: skip_mask has {len(skip_mask)} entries, the longest group "
            f"{longest} parameters. Every group reads the mask from its first entry, as on a "
            "Gaudi, so that the others count for none. Put all parameters into one group.",
            stacklevel=3,
        )


__getattr__ = missing(__name__)
