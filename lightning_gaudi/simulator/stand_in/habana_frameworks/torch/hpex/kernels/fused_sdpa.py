"""Computes scaled dot product attention by one operator.

B batch, H query heads, G key heads, R = H / G, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._missing import missing
from ... import hpu
from ..._ops.attention_masks import is_open
from ._grouped_queries import (
    gqa_input_reshape_bwd,
    gqa_input_reshape_fwd,
    gqa_output_reshape,
    is_gqa,
)

__all__ = [
    "FusedSDPA",
    "gqa_input_reshape_bwd",
    "gqa_input_reshape_fwd",
    "gqa_output_reshape",
    "is_gqa",
    "sdpa_bwd_wrapper",
    "sdpa_fwd_wrapper",
]

_NUM_SETTINGS = 12


def sdpa_fwd_wrapper(
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
    window_size: tuple[int, int] = (-1, -1),
    sink: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Computes attention, as the forward pass of `FusedSDPA`, which takes all but `ctx`.

    On a card `window_size` and `sink` need long sequences that are multiples of its slices (its
    documentation, "Additional Constraints for Sliding Window and Attention Sink"); not here.

    Args:
        ctx: Keeps what the backward pass needs.
        q: Queries, of shape (B, H, T, D) or (B, T, D).
        k: Keys, of shape (B, G, S, D) or (B, S, D); H must be a multiple of G.
        v: Values, of shape (B, G, S, D) or (B, S, D).
        attn_mask: Added to the scores, or booleans that are True where to attend; of shape
            (B, H or 1, T or 1, S), or (T, S).
        dropout_p: Dropout's probability; 0 in evaluation.
        is_causal: Whether a token sees no later one.
        scale: Multiplies the scores; 1 / sqrt(D) by default.
        softmax_mode: "None", "fast" or, for bf16, "fp32"; all computed in fp32.
        recompute_mode: Whether the backward pass computes the probabilities again; by default
            as `torch.hpu.sdp_kernel` says. One query alone, without gradients, always does.
        valid_seq_len: How many tokens of each sample are no padding, of shape (B,); only with
            `is_causal` and without gradients.
        seq_padding_type: "left" or "right": where the padding is.
        return_dropout_mask: Whether to return what dropout kept, too; not when recomputing.
        return_attn_probs: Whether to return the probabilities, too; only without gradients.
        window_size: Query i sees keys i - window_size[0] to i + window_size[1]; -1 for no end.
            Only when recomputing, without gradients and softmax in fp32.
        sink: Each head's logit that takes part in the softmax and sees no value, of shape (H,);
            only when recomputing and without gradients.

    Returns:
        The output (B, H, T, D); if asked for with it, the probabilities (B, H, T, S) and the
        dropout mask, 1 where kept, of that shape, or empty without dropout.

    Raises:
        ValueError: The arguments do not go together on a card.

    Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/FusedSDPA.py; Gaudi documentation 1.23,
    Python packages, hpex/kernels/FusedSDPA.
    """
    trains = any(ctx.needs_input_grad[:3])
    if not trains and 0 in (q.numel(), k.numel(), v.numel()):
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    mode = softmax_mode.lower()
    recompute = hpu.recompute_sdp_enabled() if recompute_mode is None else recompute_mode
    recompute = recompute if trains else _without_gradients(recompute, q, return_attn_probs)
    _check_training(trains, recompute, mode, is_causal, return_attn_probs)
    _check_padding(valid_seq_len, trains, is_causal)
    _check_slices(window_size, sink, trains, recompute, mode)
    if recompute and return_dropout_mask:
        raise ValueError("FusedSDPA returns no dropout mask when it recomputes. "
                         "Pass recompute_mode=False.")  # fmt: skip
    if mode == "fp32" and q.dtype != torch.bfloat16:
        raise ValueError(f"FusedSDPA with softmax_mode='fp32' takes bfloat16, got {q.dtype}.")
    scale = 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
    ctx.shapes = (q.shape, k.shape, v.shape)
    ctx.settings = (is_causal, dropout_p, scale, mode)
    ctx.recompute = recompute
    q, k, v, mask = gqa_input_reshape_fwd(q, k, v, _of_rank(attn_mask, q))
    shape = (*ctx.shapes[0][:-1], v.shape[-1])
    inputs = (q, k, v, mask, dropout_p, scale, is_causal)
    padding = (mode, valid_seq_len, seq_padding_type.lower())
    if recompute:
        out, *kept = torch.ops.hpu.sdpa_recomp_fwd(*inputs, trains, *padding, window_size, sink)
    else:
        out, *kept = torch.ops.hpu.sdpa_fwd(*inputs, *padding)
    if trains:
        ctx.save_for_backward(q, k, v, mask, out, *kept)
    results = [out.reshape(shape)]
    for wanted, extra in ((return_attn_probs, 0), (return_dropout_mask, 1)):
        if wanted:
            like = kept[extra]
            results.append(like.reshape((*shape[:-1], k.shape[-2])) if like.numel() else like)
    if len(results) == 1:
        return results[0]
    ctx.mark_non_differentiable(*results[1:])
    return tuple(results)


def sdpa_bwd_wrapper(ctx: Any, dout: torch.Tensor, *args: Any) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients of queries, keys and values, given the output's gradient."""
    q, k, v, mask, out, *kept = ctx.saved_tensors
    is_causal, dropout_p, scale, mode = ctx.settings
    grad = dout.reshape(out.shape)
    ops = torch.ops.hpu
    if ctx.recompute:
        gradients = ops.sdpa_recomp_bwd(
            grad, q, k, v, mask, *kept, is_causal, dropout_p, scale, mode, out
        )
    else:
        gradients = ops.sdpa_bwd(grad, q, k, v, *kept, is_causal, dropout_p, scale, out)
    shaped = [g.reshape(shape) for g, shape in zip(gradients, ctx.shapes, strict=True)]
    return (*shaped, *[None] * _NUM_SETTINGS)


class FusedSDPA(torch.autograd.Function):
    """Attention by `apply`, which takes the arguments of `sdpa_fwd_wrapper` without `ctx`."""

    forward = staticmethod(sdpa_fwd_wrapper)
    backward = staticmethod(sdpa_bwd_wrapper)


def _without_gradients(recompute: bool, q: torch.Tensor, return_attn_probs: bool) -> bool:
    """Returns whether the kernel that recomputes runs where there is no backward pass."""
    return not return_attn_probs and (recompute or q.shape[-2] == 1)


def _of_rank(mask: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """Expands a mask of shape (T, S) to the queries' batch and rank."""
    if mask is None or mask.dim() != 2:
        return mask
    return mask.expand(q.shape[0], *[1] * (q.dim() - 3), *mask.shape)


def _check_training(
    trains: bool, recompute: bool, mode: str, is_causal: bool, return_attn_probs: bool
) -> None:
    if not trains:
        return
    if return_attn_probs:
        raise ValueError(
            "FusedSDPA returns probabilities only without gradients. Call it in torch.no_grad()."
        )
    if recompute and mode == "fast" and not is_causal:
        raise ValueError(
            "FusedSDPA trains with softmax_mode='fast' and recomputing only with is_causal=True. "
            "Pass softmax_mode='None' or recompute_mode=False."
        )


def _check_padding(valid_seq_len: torch.Tensor | None, trains: bool, is_causal: bool) -> None:
    if valid_seq_len is not None and (trains or not is_causal):
        raise ValueError(
            "FusedSDPA takes valid_seq_len only with is_causal=True and without gradients. "
            "Pass a mask instead."
        )


def _check_slices(
    window_size: tuple[int, int],
    sink: torch.Tensor | None,
    trains: bool,
    recompute: bool,
    mode: str,
) -> None:
    """Checks that `window_size` and `sink` are given only where they are computed."""
    if is_open(window_size) and sink is None:
        return
    # The kernel that keeps its probabilities would ignore both, and so would the backward passes.
    if trains or not recompute:
        raise ValueError(
            "FusedSDPA takes window_size and sink only without gradients and with "
            "recompute_mode=True."
        )
    if mode == "fp32" and not is_open(window_size):
        raise ValueError("FusedSDPA takes no window_size with softmax_mode='fp32'.")


__getattr__ = missing(__name__)
