"""Computes scaled dot product attention, keeping its probabilities or computing them again.

B batch, H query heads, T query tokens, S key tokens, D head dim. Keys and values may have one head
for all queries; probabilities have the queries' heads.
"""

from __future__ import annotations

import torch

from ._library import operator
from .attention_masks import Window, exp_, hidden_keys, softmax_with_sink

_SOFTMAX_MODES = ("none", "fast", "fp32")
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, "
_PADDING = "str softmax_mode, Tensor? valid_seq_len, str seq_padding_type"


def scores_of(
    q: torch.Tensor,
    k: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    is_causal: bool,
    valid_seq_len: torch.Tensor | None = None,
    seq_padding_type: str = "left",
    window: Window | None = None,
) -> torch.Tensor:
    """Returns the scores before the softmax, in fp32, of shape (B, H, T, S)."""
    # In place, here and below: a copy of the scores takes as long as computing on them.
    scores = torch.matmul(q, k.transpose(-2, -1)).float().mul_(scale)
    hidden = hidden_keys(scores, is_causal, valid_seq_len, seq_padding_type, window)
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    if mask is not None:
        if mask.dtype == torch.bool:
            return scores.masked_fill_(~mask, float("-inf"))
        scores += mask
    return scores


def check_settings(softmax_mode: str, p: float) -> None:
    """Checks that there is such a softmax and that dropout leaves something.

    Raises:
        ValueError: The mode is unknown, or the probability is out of range.
    """
    if softmax_mode not in _SOFTMAX_MODES:
        raise ValueError(f"softmax_mode={softmax_mode!r} is none of {', '.join(_SOFTMAX_MODES)}.")
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p={p} is not a probability from 0 up to 1. Pass 0 for none.")


def _kept(seed: torch.Tensor, shape: torch.Size, p: float) -> torch.Tensor:
    """Returns which probabilities dropout keeps, as a function of the seed alone.

    A counter-based generator (SplitMix64) over the positions: it needs no generator's state and
    no host sync, so the backward pass finds the same answer.
    """
    x = torch.arange(shape.numel(), device=seed.device, dtype=torch.int64)
    x.mul_(-7046029254386353131).add_(seed.long() * -4658895280553007687)
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x.bitwise_xor_(_shifted(x, shift)).mul_(factor)
    uniform = _shifted(x.bitwise_xor_(_shifted(x, 31)), 40)
    return (uniform >= int(p * 2**24)).reshape(shape)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifts to the right, with zeros from the left, where torch's >> repeats the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _sum_to(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sums over the dims along which `like` was broadcast, and takes its dtype."""
    return gradient.sum_to_size(like.shape).to(like.dtype)


def attention_gradients(
    grad: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    probabilities: torch.Tensor,
    kept: torch.Tensor | None,
    p: float,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of queries, keys and values, given the probabilities."""
    q, k, v = qkv
    grad_p = torch.matmul(grad, v.transpose(-2, -1)).float()
    used = probabilities
    if kept is not None:
        used = (probabilities * kept).div_(1 - p)
        grad_p.mul_(kept).div_(1 - p)
    inner = (grad_p * probabilities).sum(-1, keepdim=True)
    grad_scores = grad_p.sub_(inner).mul_(probabilities).mul_(scale).to(q.dtype)
    grad_q = torch.matmul(grad_scores, k)
    grad_k = torch.matmul(grad_scores.transpose(-2, -1), q)
    grad_v = torch.matmul(used.to(grad.dtype).transpose(-2, -1), grad)
    return _sum_to(grad_q, q), _sum_to(grad_k, k), _sum_to(grad_v, v)


def _score_shape(q: torch.Tensor, k: torch.Tensor) -> tuple[int, ...]:
    return (*q.shape[:-1], k.shape[-2])


def _fwd_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    p: float,
    *args: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = _score_shape(q, k)
    kept = q.new_empty(shape if p > 0 else (0,), dtype=torch.int8)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(shape), kept


@operator(f"sdpa_fwd({_INPUTS}bool is_causal, {_PADDING}) -> (Tensor, Tensor, Tensor)",
          fake=_fwd_fake)  # fmt: skip
def sdpa_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    p: float,
    scale: float,
    is_causal: bool,
    softmax_mode: str,
    valid_seq_len: torch.Tensor | None,
    seq_padding_type: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes attention and keeps its probabilities.

    Args:
        q: Queries, of shape (B, H, T, D).
        k: Keys, of shape (B, H or 1, S, D).
        v: Values, of shape (B, H or 1, S, D).
        attention_mask: Added to the scores, or booleans that are True where to attend.
        p: Dropout's probability.
        scale: Multiplies the scores.
        is_causal: Whether a token sees no later one.
        softmax_mode: "none", "fast" or "fp32"; all computed in fp32.
        valid_seq_len: How many tokens of each sample are no padding, of shape (B,).
        seq_padding_type: "left" or "right": where the padding is.

    Returns:
        Output (B, H, T, D), probabilities (B, H, T, S), and what dropout kept, int8, with the
        same shape or empty without dropout.
    """
    check_settings(softmax_mode, p)
    padding = (valid_seq_len, seq_padding_type)
    probabilities = scores_of(q, k, attention_mask, scale, is_causal, *padding).softmax(-1)
    kept = torch.empty(0, dtype=torch.int8, device=q.device)
    used = probabilities
    if p > 0:
        kept = (torch.rand_like(probabilities) >= p).to(torch.int8)
        used = (probabilities * kept).div_(1 - p)
    return torch.matmul(used.to(v.dtype), v), probabilities.to(q.dtype), kept


def _bwd_fake(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@operator(
    "sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, "
    "float p, float scale, Tensor fwd_out) -> (Tensor, Tensor, Tensor)",
    fake=_bwd_fake,
)
def sdpa_bwd(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    P: torch.Tensor,  # noqa: N803 (the vendor's name)
    dm: torch.Tensor | None,
    is_causal: bool,
    p: float,
    scale: float,
    fwd_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of `sdpa_fwd` for queries, keys and values, from what it returned."""
    return attention_gradients(grad, (q, k, v), P.float(), dm if p > 0 else None, p, scale)


def _recomp_fwd_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    rows = (*q.shape[:-1], 1)
    m, linv = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return out, m, linv, q.new_empty(1, dtype=torch.int32)


@operator(
    f"sdpa_recomp_fwd({_INPUTS}bool is_causal, bool requires_backward, {_PADDING}, "
    "int[]? window_size=None, Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_recomp_fwd_fake,
)
def sdpa_recomp_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    p: float,
    scale: float,
    is_causal: bool,
    requires_backward: bool,
    softmax_mode: str,
    valid_seq_len: torch.Tensor | None,
    seq_padding_type: str,
    window_size: Window | None = None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes attention and keeps two numbers a row, with two arguments beside `sdpa_fwd`'s.

    With `window_size` query i sees keys i - window_size[0] to i + window_size[1], where -1 is no
    end; `sink` is each head's logit that takes part in the softmax and sees no value, of shape
    (H,). `requires_backward` has no effect.

    Returns:
        Output (B, H, T, D), each row's largest score and inverse sum of exponentials (B, H, T, 1)
        in fp32, and dropout's seed (1,) in int32.
    """
    check_settings(softmax_mode, p)
    padding = (valid_seq_len, seq_padding_type)
    scores = scores_of(q, k, attention_mask, scale, is_causal, *padding, window_size)
    used, m, linv = softmax_with_sink(scores, sink)
    seed = torch.zeros(1, dtype=torch.int32, device=q.device)
    if p > 0:
        seed.random_(2**31 - 1)
        used.mul_(_kept(seed, used.shape, p)).div_(1 - p)
    return torch.matmul(used.to(v.dtype), v), m, linv, seed


@operator(
    "sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, "
    "Tensor linv, Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, "
    "Tensor fwd_out) -> (Tensor, Tensor, Tensor)",
    fake=_bwd_fake,
)
def sdpa_recomp_bwd(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    m: torch.Tensor,
    linv: torch.Tensor,
    seed: torch.Tensor | None,
    is_causal: bool,
    p: float,
    scale: float,
    softmax_mode: str,
    fwd_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of `sdpa_recomp_fwd`, with the probabilities computed again."""
    scores = scores_of(q, k, attention_mask, scale, is_causal)
    probabilities = exp_(scores.sub_(m)).mul_(linv)
    kept = None
    if p > 0:
        assert seed is not None, "the forward pass returned a seed"
        kept = _kept(seed, probabilities.shape, p)
    return attention_gradients(grad, (q, k, v), probabilities, kept, p, scale)
