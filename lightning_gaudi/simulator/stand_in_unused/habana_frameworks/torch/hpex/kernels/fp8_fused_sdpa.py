"""Computes scaled dot product attention of fp8 tensors by one operator.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._missing import missing
from ... import hpu
from ..._ops.attention_masks import is_open
from ..._ops.fp8 import FP8_DTYPES
from ._grouped_queries import (
    gqa_input_reshape_bwd,
    gqa_input_reshape_fwd,
    gqa_output_reshape,
    is_gqa,
)

__all__ = [
    "Fp8FusedSDPA",
    "fp8_fused_sdpa",
    "fp8_sdpa_bwd_wrapper",
    "fp8_sdpa_fwd_wrapper",
    "gqa_input_reshape_bwd",
    "gqa_input_reshape_fwd",
    "gqa_output_reshape",
    "is_gqa",
]

_NUM_SETTINGS = 19


def fp8_sdpa_fwd_wrapper(
    ctx: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softmax_mode: str = "None",
    d_scale_q: torch.Tensor | None = None,
    d_scale_k: torch.Tensor | None = None,
    d_scale_v: torch.Tensor | None = None,
    q_scale_s: torch.Tensor | None = None,
    q_scale_o: torch.Tensor | None = None,
    d_scale_s: torch.Tensor | None = None,
    is_amax_s: bool = False,
    is_amax_o: bool = False,
    valid_seq_len: torch.Tensor | None = None,
    seq_padding_type: str = "left",
    recompute: bool | None = None,
    requires_grad: bool | None = None,
    window_size: tuple[int, int] = (-1, -1),
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Computes attention, as the forward pass of `Fp8FusedSDPA`, which takes all but `ctx`.

    Args:
        ctx: Keeps what the backward pass needs.
        q: Queries, fp8 or bf16, of shape (B, H, T, D).
        k: Keys, of shape (B, G, S, D); H must be a multiple of G.
        v: Values, of shape (B, G, S, D).
        attn_mask: Added to the scores, or booleans that are True where to attend.
        dropout_p: 0.
        is_causal: Whether a token sees no later one; True for gradients.
        scale: Multiplies the scores; 1 / sqrt(D) by default.
        softmax_mode: "None", "fast" or "fp32"; all computed in fp32.
        d_scale_q: What one unit of `q` means; likewise `d_scale_k` and `d_scale_v`.
        d_scale_k: See `d_scale_q`.
        d_scale_v: See `d_scale_q`.
        q_scale_s: Multiplies the probabilities before they are rounded to fp8.
        q_scale_o: Multiplies the output before it is rounded to fp8; None leaves it in bf16.
        d_scale_s: What one unit of the rounded probabilities means; by default 1 / `q_scale_s`.
        is_amax_s: Whether to measure the largest probability.
        is_amax_o: Whether to measure the output; only without gradients.
        valid_seq_len: As `FusedSDPA`'s.
        seq_padding_type: As `FusedSDPA`'s.
        recompute: False for gradients; without them no effect.
        requires_grad: Whether there will be a backward pass; by default if an input needs one.
        window_size: As `FusedSDPA`'s.
        sink: As `FusedSDPA`'s.

    Returns:
        Output (B, H, T, D), the largest probability and the output's largest absolute value, of
        shape (1,) in fp32, or None.

    Raises:
        ValueError: The arguments do not go together on a card.

    Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/Fp8FusedSDPA.py.
    """
    trains = any(t.requires_grad for t in (q, k, v)) if requires_grad is None else requires_grad
    recompute = hpu.recompute_sdp_enabled() if recompute is None else recompute
    recompute = recompute or not trains
    _check(trains, recompute, is_causal, valid_seq_len)
    if trains and (sink is not None or not is_open(window_size)):
        raise ValueError("fp8 attention takes window_size and sink only without gradients.")
    mode, padding_type = softmax_mode.lower(), seq_padding_type.lower()
    scale = 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
    shape = (*q.shape[:-1], v.shape[-1])
    ctx.shapes = (q.shape, k.shape, v.shape)
    ctx.gqa = is_gqa(q, k)
    q, k, v, mask = gqa_input_reshape_fwd(q, k, v, attn_mask)
    inputs = (q, k, v, mask, dropout_p, scale, is_causal)
    scales = (d_scale_q, d_scale_k, d_scale_v, q_scale_s, q_scale_o, d_scale_s, is_amax_s)
    if recompute:
        out, _, _, _, amax_s, amax_o = torch.ops.hpu.fp8_sdpa_recomp_fwd(
            *inputs, trains, mode, *scales, is_amax_o, valid_seq_len, padding_type,
            window_size, sink,
        )  # fmt: skip
        amaxes = (amax_s if is_amax_s else None, amax_o if is_amax_o else None)
    else:
        out, probabilities, kept, amax_s = torch.ops.hpu.fp8_sdpa_fwd(
            *inputs, mode, *scales, valid_seq_len, padding_type
        )
        ctx.save_for_backward(q, k, v, probabilities, kept, out)
        amaxes = (amax_s if is_amax_s else None, None)
    ctx.settings = (is_causal, dropout_p, scale)
    ctx.recompute = recompute
    return out.reshape(shape), *amaxes


def fp8_sdpa_bwd_wrapper(
    ctx: Any, dout: torch.Tensor, *args: Any
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients of inputs in bf16, given the output's gradient.

    Raises:
        ValueError: The inputs were fp8, whose gradients need scales of their own.
    """
    q, k, v, probabilities, kept, out = ctx.saved_tensors
    if q.dtype in FP8_DTYPES:
        raise ValueError(
            "The backward pass of fp8_fused_sdpa knows no scales, so it takes bfloat16 only, got "
            f"{q.dtype}. Train with transformer_engine.FusedAttention."
        )
    gradients = torch.ops.hpu.sdpa_bwd(
        dout.reshape(out.shape), q, k, v, probabilities, kept, *ctx.settings, out
    )
    shaped = [g.reshape(shape) for g, shape in zip(gradients, ctx.shapes, strict=True)]
    return (*shaped, *[None] * _NUM_SETTINGS)


class Fp8FusedSDPA(torch.autograd.Function):
    """Attention in fp8, which `fp8_fused_sdpa` calls."""

    forward = staticmethod(fp8_sdpa_fwd_wrapper)
    backward = staticmethod(fp8_sdpa_bwd_wrapper)


def fp8_fused_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softmax_mode: str = "None",
    d_scale_q: torch.Tensor | None = None,
    d_scale_k: torch.Tensor | None = None,
    d_scale_v: torch.Tensor | None = None,
    q_scale_s: torch.Tensor | None = None,
    q_scale_o: torch.Tensor | None = None,
    d_scale_s: torch.Tensor | None = None,
    is_amax_s: bool = False,
    is_amax_o: bool = False,
    valid_seq_len: torch.Tensor | None = None,
    seq_padding_type: str = "left",
    recompute: bool | None = None,
    requires_grad: bool | None = None,
    window_size: tuple[int, int] = (-1, -1),
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Computes attention of fp8 tensors, as `fp8_sdpa_fwd_wrapper` describes it."""
    return Fp8FusedSDPA.apply(
        q, k, v, attn_mask, dropout_p, is_causal, scale, softmax_mode, d_scale_q, d_scale_k,
        d_scale_v, q_scale_s, q_scale_o, d_scale_s, is_amax_s, is_amax_o, valid_seq_len,
        seq_padding_type, recompute, requires_grad, window_size, sink,
    )  # fmt: skip


def _check(
    trains: bool, recompute: bool, is_causal: bool, valid_seq_len: torch.Tensor | None
) -> None:
    if trains and not is_causal:
        raise ValueError("fp8 attention trains only with is_causal=True.")
    if trains and recompute:
        raise ValueError(
            "fp8 attention has no backward pass that computes the probabilities again. "
            "Pass recompute=False."
        )
    if valid_seq_len is not None and (trains or not is_causal):
        raise ValueError(
            "fp8 attention takes valid_seq_len only with is_causal=True and without gradients."
        )


__getattr__ = missing(__name__)
