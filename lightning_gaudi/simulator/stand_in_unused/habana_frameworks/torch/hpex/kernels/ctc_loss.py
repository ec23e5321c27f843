"""Computes the CTC loss by one operator.

T input tokens, N batch, C classes, S target tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn._reduction import get_enum

from ...._missing import missing


class CTCLoss(torch.autograd.Function):
    """The CTC loss by `apply`, with torch.nn.functional.ctc_loss's arguments by position.

    One host sync is counted for each pass that a card has not: the CPU's kernel waits for the
    lengths.

    Source: Gaudi PyTorch bridge 1.19 and of 2025 (commit f186e3d), hpex.kernels.CTCLoss.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        """Computes the loss.

        Args:
            ctx: Keeps what the backward pass needs.
            log_probs: Log probabilities, of shape (T, N, C) or (T, C).
            targets: Classes, of shape (N, S), or all in a row.
            input_lengths: Shape (N,).
            target_lengths: Shape (N,).
            blank: The class that is no token.
            reduction: "none", "mean" or "sum".
            zero_infinity: Whether an impossible target counts as 0.

        Returns:
            Shape (), or (N,) without reduction.
        """
        ctx.settings = (blank, get_enum(reduction), zero_infinity)
        tensors = (log_probs, targets, input_lengths, target_lengths)
        loss, alpha = torch.ops.hpu.ctc_loss_custom(*tensors, *ctx.settings)
        ctx.save_for_backward(*tensors, loss, alpha)
        return loss

    @staticmethod
    def backward(ctx: Any, loss_grad_in: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of `log_probs`, given the loss's."""
        grad = torch.ops.hpu.ctc_loss_custom_backward(
            loss_grad_in, *ctx.saved_tensors, *ctx.settings
        )
        return (grad, *[None] * 6)


__getattr__ = missing(__name__)
