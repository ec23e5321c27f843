"""Implements attention in fp8.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ......_missing import missing
from ....._card import card
from .....hpu import sdp_kernel
from ....kernels.fp8_fused_sdpa import fp8_sdpa_fwd_wrapper
from ....kernels.fused_sdpa import FusedSDPA
from ..cpp_extensions import _update_amax_history, cast_to_fp8
from ..fp8 import FP8GlobalStateManager, get_fp8_te_dtype, get_fp8_te_sr
from ..recipe import Format
from ..utils import FP8BwdTensors, FP8FwdTensors
from .base import TransformerEngineBaseModule

_Q, _K, _V, _S = (
    FP8FwdTensors.GEMM1_INPUT,
    FP8FwdTensors.GEMM1_WEIGHT,
    FP8FwdTensors.GEMM2_INPUT,
    FP8FwdTensors.GEMM2_WEIGHT,
)
_DO, _DS = FP8BwdTensors.GRAD_OUTPUT1, FP8BwdTensors.GRAD_OUTPUT2


class _AttentionFunction(torch.autograd.Function):
    """Both passes; queries, keys, values and probabilities take the four places of two products."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        settings: dict[str, Any],
        fp8_meta: dict[str, Any],
        measure: dict[str, bool],
    ) -> torch.Tensor:
        table = fp8_meta["scaling_fwd"]
        dtype = get_fp8_te_dtype(fp8_meta["recipe"])
        rounded = [
            cast_to_fp8(x, table, place, dtype, measure_amax=measure["fwd_enabled"])
            for x, place in ((q, _Q), (k, _K), (v, _V))
        ]
        names = ("d_scale_q", "d_scale_k", "d_scale_v")
        scales = {name: table.scale_inv[i] for name, i in zip(names, (_Q, _K, _V), strict=True)}
        out, amax_s, _ = fp8_sdpa_fwd_wrapper(
            ctx, *rounded, mask, **settings, **scales, q_scale_s=table.scale[_S],
            is_amax_s=measure["fwd_enabled"], requires_grad=any(ctx.needs_input_grad[:3]),
        )  # fmt: skip
        if measure["fwd_enabled"]:
            _update_amax_history(amax_s, table, _S)
        ctx.fp8_meta, ctx.measure, ctx.scale_inv = fp8_meta, measure, table.scale_inv
        ctx.dtypes = (q.dtype, k.dtype, v.dtype)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, probabilities, kept, out = ctx.saved_tensors
        fp8_meta, measure, scale_inv = ctx.fp8_meta, ctx.measure, ctx.scale_inv
        TransformerEngineBaseModule.prepare_backward(fp8_meta, measure)
        recipe, table = fp8_meta["recipe"], fp8_meta["scaling_bwd"]
        dtype = get_fp8_te_dtype(recipe, fprop_tensor=False)
        at_random = get_fp8_te_sr(recipe, fprop_tensor=False)
        upstream = cast_to_fp8(grad, table, _DO, dtype, at_random, measure["bwd_enabled"])
        *gradients, amax = torch.ops.hpu.fp8_sdpa_bwd(
            upstream.reshape(out.shape), q, k, v, probabilities, kept, *ctx.settings,
            *(scale_inv[i] for i in (_Q, _K, _V, _S)), table.scale_inv[_DO],
            table.scale_inv[_DS], None, table.scale[_DS], measure["bwd_enabled"], out,
        )  # fmt: skip
        if measure["bwd_enabled"]:
            _update_amax_history(amax, table, _DS)
        shaped = [
            g.reshape(shape).to(dtype)
            for g, shape, dtype in zip(gradients, ctx.shapes, ctx.dtypes, strict=True)
        ]
        return (*shaped, *[None] * 4)


class FusedAttention(TransformerEngineBaseModule):
    """Computes FusedSDPA, inside of `fp8_autocast` of fp8 tensors.

    In fp8 it trains with a causal mask and without dropout and recomputing; under HYBRID it needs
    a Gaudi 3.

    Args:
        scale: Multiplies the scores; None for 1 / sqrt(D).
        attention_dropout: Dropout's probability.
        enable_recompute: Whether the backward pass computes the probabilities again.

    Source: Gaudi PyTorch bridge, transformer_engine/module/attention.py (commit f90046f).
    """

    def __init__(
        self, scale: float | None, attention_dropout: float, enable_recompute: bool
    ) -> None:
        super().__init__()
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.enable_recompute = enable_recompute

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        softmax_mode: str = "None",
    ) -> torch.Tensor:
        """Computes attention.

        Args:
            query_layer: Shape (B, H, T, D).
            key_layer: Shape (B, G, S, D).
            value_layer: Shape (B, G, S, D).
            attention_mask: Added to the scores, or booleans that are True where to attend.
            is_causal: Whether a token sees no later one.
            softmax_mode: As `FusedSDPA`'s.

        Returns:
            Shape (B, H, T, D).

        Raises:
            ValueError: A card cannot compute this in fp8.
        """
        tensors = (query_layer, key_layer, value_layer)
        scale = 1 / math.sqrt(query_layer.shape[-1]) if self.scale is None else self.scale
        settings = (self.attention_dropout, is_causal, scale, softmax_mode)
        if not FP8GlobalStateManager.is_fp8_enabled():
            self.check_passes_agree()
            with sdp_kernel(enable_recompute=self.enable_recompute):
                return FusedSDPA.apply(*tensors, attention_mask, *settings)
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        if (
            recipe is not None
            and recipe.fp8_format is Format.HYBRID
            and not card().has_hybrid_float8_attention
        ):
            raise ValueError(
                "FusedAttention in fp8 with Format.HYBRID needs a Gaudi 3. Use Format.E5M2, or "
                "leave it out of fp8_autocast."
            )
        names = ("dropout_p", "is_causal", "scale", "softmax_mode")
        named = dict(zip(names, settings, strict=True), recompute=self.enable_recompute)
        with self.prepare_forward(num_gemms=2) as measure:
            arguments = (attention_mask, named, self.fp8_meta, measure)
            return _AttentionFunction.apply(*tensors, *arguments)


__getattr__ = missing(__name__)
