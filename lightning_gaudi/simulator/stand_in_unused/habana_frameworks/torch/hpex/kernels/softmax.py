"""Computes the softmax of rows of different lengths by one operator."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...._missing import missing


class RaggedSoftmax(torch.autograd.Function):
    """The softmax of each row's first elements; call `apply(input, -1, False, valid_count)`.

    Source: Gaudi PyTorch bridge 1.19, hpex/kernels/Softmax.py.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        dim: int,
        half_to_float: bool,
        valid_count: torch.Tensor,
    ) -> torch.Tensor:
        """Normalizes the first `valid_count` elements of each row; the others become 0."""
        output = torch.ops.hpu.ragged_softmax(input, dim, half_to_float, valid_count)
        ctx.save_for_backward(output)
        ctx.dim, ctx.input_dtype = dim, input.dtype
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of the input, given the output's."""
        (output,) = ctx.saved_tensors
        grad = torch._softmax_backward_data(grad_output, output, ctx.dim, ctx.input_dtype)
        return grad, None, None, None


@functools.cache
def valid_counts(p: int, q: int, device: torch.device) -> torch.Tensor:
    """Returns the numbers 1 to `q`, `p` times, on the device."""
    return torch.arange(1, q + 1).repeat(p).to(device)


def triu_masked_softmax(input: torch.Tensor) -> torch.Tensor:
    """Returns the softmax of the last dim, of which row i has i + 1 elements that count.

    Args:
        input: Shape (..., rows, columns).
    """
    num_rows, num_columns = input.shape[-2:]
    num_matrices = input.shape[:-2].numel()
    counts = valid_counts(num_matrices, num_rows, input.device)
    flat = input.reshape(num_matrices * num_rows, 1, 1, num_columns)
    return RaggedSoftmax.apply(flat, -1, False, counts).reshape(input.shape)


__getattr__ = missing(__name__)
