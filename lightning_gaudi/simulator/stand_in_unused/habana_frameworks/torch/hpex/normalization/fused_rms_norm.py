"""Normalizes by the root mean square, by one operator."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from ...._missing import missing


class RmsNormBwdMode(Enum):
    """How a card splits the backward pass; no effect on the simulated HPU."""

    DEFAULT = 0
    STATIC_CASE_WIDTH_PARTITIONING = 1


class FusedRMSNorm(torch.autograd.Function):
    """Divides by the root of the mean square of the last dim and scales; call `apply`."""

    @staticmethod
    def forward(
        ctx: Any,
        data_in: torch.Tensor,
        gamma: torch.Tensor,
        eps: float,
        use_stages: bool = True,
        bwd_mode: int = 0,
        fast_math: bool = False,
    ) -> torch.Tensor:
        """Normalizes.

        Args:
            ctx: Keeps what the backward pass needs.
            data_in: Shape (..., D).
            gamma: The scale, of shape (D,).
            eps: Added to the mean square.
            use_stages: Which kernel a card takes for the backward pass; no effect here.
            bwd_mode: How a card splits the backward pass; no effect here.
            fast_math: Whether a card takes its faster kernel; no effect here.

        Returns:
            Shape (..., D); fp32 if the dtypes of `data_in` and `gamma` differ, else theirs.
        """
        operator = torch.ops.hpu.rms_norm_fast if fast_math else torch.ops.hpu.rms_norm
        output, inverse_rms = operator(data_in, gamma, eps)
        ctx.save_for_backward(inverse_rms, data_in, gamma)
        ctx.options = (use_stages, bwd_mode)
        ctx.fast_math = fast_math
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of `data_in` and `gamma`, given the output's."""
        inverse_rms, data_in, gamma = ctx.saved_tensors
        ops = torch.ops.hpu
        operator = ops.rms_norm_fast_backward if ctx.fast_math else ops.rms_norm_backward
        grad_data, grad_gamma = operator(grad, data_in, gamma, inverse_rms, *ctx.options)
        return grad_data, grad_gamma, None, None, None, None


__getattr__ = missing(__name__)
