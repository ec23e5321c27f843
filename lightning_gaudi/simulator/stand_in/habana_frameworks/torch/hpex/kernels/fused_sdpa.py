"""Scaled dot product attention by one operator.

B batch, H query heads, G key heads, R = H / G, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._missing import missing, not_simulated
from ... import hpu


class FusedSDPA(torch.autograd.Function):
    """Attention; call `apply`, which takes positional arguments only."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",
        recompute_mode: bool | None = None,
        valid_seq_len: torch.Tensor | None = None,
        seq_padding_type: str = "left",
        return_dropout_mask: bool = False,
        return_attn_probs: bool = False,
    ) -> torch.Tensor:
        """Attend.

        Args:
            ctx: Keeps what the backward pass needs.
            q: Queries, of shape (B, H, T, D).
            k: Keys, of shape (B, G, S, D); H must be a multiple of G.
            v: Values, of shape (B, G, S, D).
            attn_mask: Added to the scores, or booleans that are True where to attend; of shape
                (B, H or 1, T, S).
            dropout_p: Dropout's probability; 0 in evaluation.
            is_causal: Whether a token sees no later one.
            scale: Multiplies the scores; 1 / sqrt(D) by default.
            softmax_mode: "None", "fast" or "fp32"; all computed in fp32.
            recompute_mode: Whether the backward pass computes the probabilities again; by default
                as `torch.hpu.sdp_kernel` says.
            valid_seq_len: Not supported.
            seq_padding_type: No effect without `valid_seq_len`.
            return_dropout_mask: Not supported.
            return_attn_probs: Not supported.

        Returns:
            Shape (B, H, T, D).

        Raises:
            NotImplementedError: An argument is not supported.
        """
        if return_dropout_mask or return_attn_probs:
            raise not_simulated("FusedSDPA with return_dropout_mask or return_attn_probs")
        if valid_seq_len is not None:
            raise not_simulated("FusedSDPA with valid_seq_len", "Pass a mask instead.")
        scale = 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
        recompute = hpu.recompute_sdp_enabled() if recompute_mode is None else recompute_mode
        mode = softmax_mode.lower()
        ctx.shapes = (q.shape, k.shape, v.shape)
        q, k, v, attn_mask = _grouped(q, k, v, attn_mask)
        ctx.settings = (is_causal, dropout_p, scale, mode)
        ctx.recompute = recompute
        ops = torch.ops.hpu
        if recompute:
            out, *kept = ops.sdpa_recomp_fwd(
                q, k, v, attn_mask, dropout_p, scale, is_causal, any(ctx.needs_input_grad[:3]),
                mode, valid_seq_len, seq_padding_type.lower(),
            )  # fmt: skip
        else:
            out, *kept = ops.sdpa_fwd(
                q, k, v, attn_mask, dropout_p, scale, is_causal, mode, valid_seq_len,
                seq_padding_type.lower(),
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, attn_mask, out, *kept)
        return out.reshape((*ctx.shapes[0][:-1], v.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of `q`, `k` and `v`, given the output's."""
        q, k, v, attn_mask, out, *kept = ctx.saved_tensors
        is_causal, dropout_p, scale, mode = ctx.settings
        grad = grad.reshape(out.shape)
        ops = torch.ops.hpu
        if ctx.recompute:
            gradients = ops.sdpa_recomp_bwd(
                grad, q, k, v, attn_mask, *kept, is_causal, dropout_p, scale, mode, out
            )
        else:
            gradients = ops.sdpa_bwd(grad, q, k, v, *kept, is_causal, dropout_p, scale, out)
        shaped = [g.reshape(shape) for g, shape in zip(gradients, ctx.shapes, strict=True)]
        return (*shaped, *[None] * 10)


def _grouped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Give grouped queries a dim of their own: q (B, G, R, T, D), k and v (B, G, 1, S, D)."""
    if q.dim() != 4 or k.shape[1] in (1, q.shape[1]):
        return q, k, v, mask
    groups = k.shape[1]
    if q.shape[1] % groups:
        raise ValueError(
            f"FusedSDPA got {q.shape[1]} query heads and {groups} key heads. "
            "The number of query heads must be a multiple of that of key heads."
        )
    if mask is not None:
        per_head = mask.shape[1] == q.shape[1]
        mask = mask.unflatten(1, (groups, -1)) if per_head else mask.unsqueeze(1)
    return q.unflatten(1, (groups, -1)), k.unsqueeze(2), v.unsqueeze(2), mask


__getattr__ = missing(__name__)
