"""Computes scaled dot product attention of fp8 tensors.

B batch, H query heads, T query tokens, S key tokens, D head dim. Queries, keys, values and
probabilities are fp8 with a scale each; products and the softmax are computed in fp32 from what
they mean. Tensors in bf16 are taken too, to measure how large the probabilities become.

Source: Gaudi PyTorch bridge 1.19, habana_eager/eager_custom_op_register.cpp (schemas, dtypes of
results) and tests/pytest_working/any_mode/FusedSDPA/test_hpu_sdpa_fp8.py.
"""

from __future__ import annotations

import torch

from ._library import operator
from .attention import check_settings, scores_of
from .attention_masks import Window, softmax_with_sink
from .fp8 import FP8_DTYPES, Scale, largest_of, quantize, require_fp8, times

_Optional = torch.Tensor | None
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, "
)
_SCALES = (
    "Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? q_scale_s, "
    "Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, "
)
_PADDING = "Tensor? valid_seq_len, str seq_padding_type"


def _meant(x: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Returns the numbers in fp32 that a tensor and its scale stand for."""
    return times(x.float(), scale)


def _rounded(x: torch.Tensor, dtype: torch.dtype, up: _Optional) -> torch.Tensor:
    """Returns a tensor in `dtype`, multiplied before by the scale `up` if that is fp8."""
    return quantize(times(x, up), dtype) if dtype in FP8_DTYPES else x.to(dtype)


def _understood(
    x: torch.Tensor, dtype: torch.dtype, up: _Optional, down: _Optional
) -> torch.Tensor:
    """Returns `x` in fp32 after rounding to `dtype`; to fp8 with scale `up`, back with `down`."""
    rounded = _rounded(x, dtype, up).float()
    if dtype not in FP8_DTYPES:
        return rounded
    if down is None and up is not None:
        return rounded / up.float()
    return times(rounded, down)


def _check(softmax_mode: str, p: float) -> None:
    require_fp8("fp8 attention")
    check_settings(softmax_mode, p)
    if p > 0:
        raise NotImplementedError(
            f"fp8 attention with dropout (p={p}) is not available on the simulated HPU. Pass 0."
        )


def _out_dtype(q: torch.Tensor, q_scale_o: object) -> torch.dtype:
    return torch.bfloat16 if q.dtype in FP8_DTYPES and q_scale_o is None else q.dtype


def _amax(x: torch.Tensor, wanted: bool) -> torch.Tensor:
    return largest_of(x, True).reshape(1) if wanted else largest_of(x, False)


def _fwd_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: object
) -> tuple[torch.Tensor, ...]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_out_dtype(q, args[9]))
    probabilities = q.new_empty((*q.shape[:-1], k.shape[-2]))
    amax = q.new_empty(1 if args[11] else 0, dtype=torch.float32)
    return out, probabilities, q.new_empty(0, dtype=torch.int8), amax


@operator(
    f"fp8_sdpa_fwd({_INPUTS}str softmax_mode, {_SCALES}{_PADDING}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    fake=_fwd_fake,
)
def fp8_sdpa_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: _Optional,
    p: float,
    scale: float,
    is_causal: bool,
    softmax_mode: str,
    d_scale_q: _Optional,
    d_scale_k: _Optional,
    d_scale_v: _Optional,
    q_scale_s: _Optional,
    q_scale_o: _Optional,
    d_scale_s: _Optional,
    is_amax_s: bool,
    valid_seq_len: _Optional,
    seq_padding_type: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes attention and keeps its probabilities; see `sdpa_fwd`.

    Args:
        q: Queries, fp8 or bf16, of shape (B, H, T, D).
        k: Keys, of shape (B, H or 1, S, D).
        v: Values, of shape (B, H or 1, S, D).
        attention_mask: Added to the scores, or booleans that are True where to attend.
        p: 0.
        scale: Multiplies the scores.
        is_causal: Whether a token sees no later one.
        softmax_mode: "none", "fast" or "fp32"; all computed in fp32.
        d_scale_q: What one unit of `q` means.
        d_scale_k: What one unit of `k` means.
        d_scale_v: What one unit of `v` means.
        q_scale_s: Multiplies the probabilities before they are rounded.
        q_scale_o: Multiplies the output, which is then rounded to fp8.
        d_scale_s: What one unit of the rounded probabilities means; by default 1 / `q_scale_s`.
        is_amax_s: Whether to measure the largest probability.
        valid_seq_len: How many tokens of each sample are no padding, of shape (B,).
        seq_padding_type: "left" or "right": where the padding is.

    Returns:
        Output (B, H, T, D), in bf16 unless `q_scale_o`; the rounded probabilities (B, H, T, S); an
        empty tensor; the largest probability (1,) in fp32, or an empty tensor.
    """
    _check(softmax_mode, p)
    scores = scores_of(
        _meant(q, d_scale_q), _meant(k, d_scale_k), attention_mask, scale, is_causal,
        valid_seq_len, seq_padding_type,
    )  # fmt: skip
    probabilities = scores.softmax(-1)
    used = _understood(probabilities, q.dtype, q_scale_s, d_scale_s)
    out = _rounded(used @ _meant(v, d_scale_v), _out_dtype(q, q_scale_o), q_scale_o)
    kept = torch.empty(0, dtype=torch.int8, device=q.device)
    amax = _amax(probabilities, is_amax_s)
    return out, _rounded(probabilities, q.dtype, q_scale_s), kept, amax


def _recomp_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: object
) -> tuple[torch.Tensor, ...]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_out_dtype(q, args[10]))
    rows = (*q.shape[:-1], 1)
    m, linv = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    amaxes = [q.new_empty(1 if args[i] else 0, dtype=torch.float32) for i in (12, 13)]
    return out, m, linv, q.new_empty(1, dtype=torch.int32), *amaxes


@operator(
    f"fp8_sdpa_recomp_fwd({_INPUTS}bool requires_backward, str softmax_mode, {_SCALES}"
    f"bool is_amax_o, {_PADDING}, int[]? window_size=None, Tensor? sink=None) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_recomp_fake,
)
def fp8_sdpa_recomp_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: _Optional,
    p: float,
    scale: float,
    is_causal: bool,
    requires_backward: bool,
    softmax_mode: str,
    d_scale_q: _Optional,
    d_scale_k: _Optional,
    d_scale_v: _Optional,
    q_scale_s: _Optional,
    q_scale_o: _Optional,
    d_scale_s: _Optional,
    is_amax_s: bool,
    is_amax_o: bool,
    valid_seq_len: _Optional,
    seq_padding_type: str,
    window_size: Window | None = None,
    sink: _Optional = None,
) -> tuple[torch.Tensor, ...]:
    """Computes attention and keeps two numbers a row, with four arguments beside `fp8_sdpa_fwd`'s.

    `is_amax_o` asks for the output's largest absolute value; `window_size` and `sink` are those of
    `sdpa_recomp_fwd`; `requires_backward` has no effect.

    Returns:
        Output (B, H, T, D); each row's largest score and inverse sum of exponentials (B, H, T, 1)
        in fp32; a seed (1,); the largest probability and the output's largest absolute value, of
        shape (1,) in fp32, or empty tensors.
    """
    _check(softmax_mode, p)
    scores = scores_of(
        _meant(q, d_scale_q), _meant(k, d_scale_k), attention_mask, scale, is_causal,
        valid_seq_len, seq_padding_type, window_size,
    )  # fmt: skip
    probabilities, m, linv = softmax_with_sink(scores, sink)
    out = _understood(probabilities, q.dtype, q_scale_s, d_scale_s) @ _meant(v, d_scale_v)
    seed = torch.zeros(1, dtype=torch.int32, device=q.device)
    amaxes = (_amax(probabilities, is_amax_s), _amax(out, is_amax_o))
    return _rounded(out, _out_dtype(q, q_scale_o), q_scale_o), m, linv, seed, *amaxes


def _bwd_fake(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: object
) -> tuple[torch.Tensor, ...]:
    gradients = [x.new_empty(x.shape, dtype=torch.bfloat16) for x in (q, k, v)]
    return *gradients, q.new_empty(1 if args[13] else 0, dtype=torch.float32)


@operator(
    "fp8_sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, "
    "bool is_causal, float p, float scale, Tensor? d_scale_q, Tensor? d_scale_k, "
    "Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, Tensor? d_scale_ds, "
    "Tensor? q_scale_s, Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    fake=_bwd_fake,
)
def fp8_sdpa_bwd(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    P: torch.Tensor,  # noqa: N803 (the vendor's name)
    dm: _Optional,
    is_causal: bool,
    p: float,
    scale: float,
    d_scale_q: _Optional,
    d_scale_k: _Optional,
    d_scale_v: _Optional,
    d_scale_s: _Optional,
    d_scale_do: _Optional,
    d_scale_ds: _Optional,
    q_scale_s: _Optional,
    q_scale_ds: _Optional,
    is_amax_ds: bool,
    fwd_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of `fp8_sdpa_fwd`; the scores' gradient is rounded as the output's is.

    Args:
        grad: The output's gradient, fp8 or bf16, of shape (B, H, T, D).
        q: Queries as in the forward pass.
        k: Keys.
        v: Values.
        P: The rounded probabilities that the forward pass returned.
        dm: None, or empty.
        is_causal: No effect: the probabilities know.
        p: 0.
        scale: Multiplied the scores.
        d_scale_q: What one unit of `q` means.
        d_scale_k: What one unit of `k` means.
        d_scale_v: What one unit of `v` means.
        d_scale_s: What one unit of `P` means.
        d_scale_do: What one unit of `grad` means.
        d_scale_ds: What one unit of the scores' rounded gradient means.
        q_scale_s: No effect.
        q_scale_ds: Multiplies the scores' gradient before it is rounded.
        is_amax_ds: Whether to measure the scores' gradient.
        fwd_out: No effect.

    Returns:
        The gradients of queries, keys and values in bf16, and the largest absolute value of the
        scores' gradient (1,) in fp32, or an empty tensor.
    """
    _check("none", p)
    upstream, probabilities = _meant(grad, d_scale_do), _meant(P, d_scale_s)
    grad_v = probabilities.transpose(-2, -1) @ upstream
    grad_p = upstream @ _meant(v, d_scale_v).transpose(-2, -1)
    inner = (grad_p * probabilities).sum(-1, keepdim=True)
    grad_s = probabilities * (grad_p - inner)
    used = _understood(grad_s, grad.dtype, q_scale_ds, d_scale_ds) * scale
    grad_q = used @ _meant(k, d_scale_k)
    grad_k = used.transpose(-2, -1) @ _meant(q, d_scale_q)
    gradients = zip((grad_q, grad_k, grad_v), (q, k, v), strict=True)
    summed = [each.sum_to_size(like.shape).to(torch.bfloat16) for each, like in gradients]
    return *summed, _amax(grad_s, is_amax_ds)
