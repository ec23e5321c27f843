"""Computes attention that is composed of operators.

B batch, H heads, T tokens, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._missing import missing, refused

_FLEX = (
    "Its score and its mask are operators that the vendor's compiler puts into the graph of "
    "torch.nn.attention.flex_attention. Use FusedSDPA, or flex_attention on the CPU."
)

flex_attention_fwd = refused("habana_frameworks.torch.hpex.kernels.flex_attention_fwd", _FLEX)
flex_attention_bwd = refused("habana_frameworks.torch.hpex.kernels.flex_attention_bwd", _FLEX)


class _Attention:
    """The two passes, over batch and heads at once or one by one."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool = False,
        with_slice: bool = False,
    ) -> torch.Tensor:
        """Computes attention, with scores scaled by 1 / sqrt(D).

        Args:
            ctx: Keeps what the backward pass needs.
            q: Queries, of shape (B, H, T, D).
            k: Keys, of shape (B, H, T, D).
            v: Values, of shape (B, H, T, D).
            is_causal: True; without it a card's release 1.24 fails.
            with_slice: Whether a card computes head by head; no effect here.

        Returns:
            Shape (B, H, T, D).

        Raises:
            ValueError: `is_causal` is False, or the tensors have other dims.
        """
        if not is_causal:
            raise ValueError(
                "PySDPA without is_causal fails in the vendor's release 1.24, which takes its "
                "scale, a float, for a tensor. Pass is_causal=True or use FusedSDPA."
            )
        if q.dim() != 4:
            raise ValueError(f"PySDPA takes tensors of 4 dims, got {q.dim()}.")
        scale = 1 / math.sqrt(q.size(-1))
        scores = torch.matmul(q, k.transpose(-2, -1))
        kept = torch.ops.hpu.scaled_triangular_softmax_retain(scores, scale)
        ctx.save_for_backward(q, k, v, *kept[1:])
        return torch.matmul(kept[0], v)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of queries, keys and values, with the probabilities recomputed."""
        q, k, v, inverse_sum, largest = ctx.saved_tensors
        scale = 1 / math.sqrt(q.size(-1))
        scores = torch.matmul(q, k.transpose(-2, -1))
        softmax = torch.ops.hpu.scaled_triangular_softmax
        probabilities = softmax(scores, scale, inverse_sum, largest)
        grad_v = torch.matmul(probabilities.transpose(-2, -1), dout)
        grad_p = torch.matmul(dout, v.transpose(-2, -1))
        grad_s = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
        grad_q = torch.matmul(grad_s, k) * scale
        grad_k = torch.matmul(grad_s.transpose(-2, -1), q) * scale
        return grad_q, grad_k, grad_v, None, None


class PySDPA(_Attention, torch.autograd.Function):
    """Causal attention; call `apply(q, k, v, True, with_slice)`.

    Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/PySDPA.py.
    """


class PySDPAHinted(_Attention, torch.autograd.Function):
    """PySDPA with a hint to the card's scheduler, which has no effect here.

    Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/PySDPA.py.
    """


__getattr__ = missing(__name__)
