"""Computes the softmax that a card approximates."""

from __future__ import annotations

from typing import Any

import torch

from ...._missing import missing


class CustomSoftmax(torch.autograd.Function):
    """The softmax of the last dim of a bf16 tensor; call `apply(input, flavor)`.

    A card approximates with flavors 1 and 2; here all are exact.

    Source: Gaudi documentation 1.23, Python packages, hpex/kernels/CustomSoftmax.
    """

    @staticmethod
    def forward(ctx: Any, inp: torch.Tensor, flavor: int) -> torch.Tensor:
        """Normalizes.

        Args:
            ctx: Keeps what the backward pass needs.
            inp: bf16, of any shape.
            flavor: 0, 1 or 2; see `torch.ops.hpu.custom_softmax`.

        Returns:
            bf16, of the input's shape.
        """
        output = torch.ops.hpu.custom_softmax(inp, flavor)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of the input, given the output's."""
        (output,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad_output, output, -1, torch.bfloat16), None


__getattr__ = missing(__name__)
