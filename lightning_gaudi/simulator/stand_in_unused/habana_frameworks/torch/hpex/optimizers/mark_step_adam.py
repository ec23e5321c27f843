"""Runs torch's Adam in graphs of its own, in lazy mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...._missing import missing
from ...core.step_closure import mark_step


class Adam(torch.optim.Adam):
    """torch.optim.Adam that ends the graph before and after it gathers a group's tensors.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        betas: Decay of the averages of gradient and squared gradient.
        eps: Added to the denominator.
        weight_decay: Decay of the weights, as part of the gradient.
        amsgrad: Whether to divide by the largest average so far.
        foreach: As torch's.
        maximize: Whether to go up.
        capturable: As torch's.
        differentiable: As torch's.
        fused: As torch's.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.Adam. The package of 2025 (commit f186e3d)
    exports neither it nor AdamW, whose step fails in 1.18 and 1.19 for an undefined name.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )

    def _init_group(self, group: dict[str, Any], *lists: list[torch.Tensor]) -> bool:
        mark_step()
        has_complex = super()._init_group(group, *lists)
        mark_step()
        return has_complex


__getattr__ = missing(__name__)
