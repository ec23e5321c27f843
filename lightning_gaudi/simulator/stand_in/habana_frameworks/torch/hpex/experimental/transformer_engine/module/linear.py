"""Implements a linear layer in fp8.

I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ......_missing import missing, not_simulated
from ..constants import dist_group_type
from ..cpp_extensions import cast_to_fp8, cast_to_fp8_hybrid, fp8_gemm
from ..fp8 import FP8GlobalStateManager, get_fp8_te_dtype, get_fp8_te_sr
from ..utils import FP8BwdTensors, FP8FwdTensors, get_default_init_method
from .base import TransformerEngineBaseModule

_INPUT, _WEIGHT = FP8FwdTensors.GEMM1_INPUT, FP8FwdTensors.GEMM1_WEIGHT
_GRAD = FP8BwdTensors.GRAD_OUTPUT1


class _Rounded(NamedTuple):
    """A tensor in fp8 for each of the passes, with its inverse scales."""

    fwd: torch.Tensor
    bwd: torch.Tensor
    fwd_scale_inv: torch.Tensor
    bwd_scale_inv: torch.Tensor


def _round(x: torch.Tensor, fp8_meta: dict[str, Any], tensor: int, measure: bool) -> _Rounded:
    table = fp8_meta["scaling_fwd"]
    if not FP8GlobalStateManager.is_hybrid_mode(fp8_meta):
        dtype = get_fp8_te_dtype(fp8_meta["recipe"])
        rounded = cast_to_fp8(x, table, tensor, dtype, measure_amax=measure)
        scale_inv = table.scale_inv[tensor]
        return _Rounded(rounded, rounded, scale_inv, scale_inv)
    hybrid = fp8_meta["scaling_hybrid"]
    bwd, fwd = cast_to_fp8_hybrid(x, hybrid, table, tensor, measure)
    return _Rounded(fwd, bwd, table.scale_inv[tensor], hybrid.scale_inv[tensor])


class _LinearFunction(torch.autograd.Function):
    """The products of both passes."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        rounded_weight: _Rounded | None,
        inp: torch.Tensor,
        bias: torch.Tensor | None,
        fp8_meta: dict[str, Any],
        measure: dict[str, bool],
        dtype: torch.dtype,
        keeps_weight: bool,
    ) -> torch.Tensor:
        matrix = inp.reshape(-1, inp.shape[-1]).to(dtype)
        x = _round(matrix, fp8_meta, _INPUT, measure["fwd_enabled"])
        w = rounded_weight or _round(weight.detach(), fp8_meta, _WEIGHT, measure["fwd_enabled"])
        # In fp32 the products on a card take their bias in bf16 (transformer_engine/module).
        bias_dtype = torch.bfloat16 if dtype == torch.float32 else dtype
        added = None if bias is None else bias.to(bias_dtype)
        gemm = (w.fwd, w.fwd_scale_inv, x.fwd, x.fwd_scale_inv, dtype)
        out = fp8_gemm(*gemm, bias=added, use_bias=bias is not None)
        kept = w.bwd if keeps_weight else weight
        ctx.save_for_backward(x.bwd, x.bwd_scale_inv, kept, w.bwd_scale_inv)
        ctx.fp8_meta, ctx.measure, ctx.dtype = fp8_meta, measure, dtype
        ctx.dtypes = (weight.dtype, inp.dtype, None if bias is None else bias.dtype)
        ctx.inp_shape = inp.shape
        return out.reshape(*inp.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, x_scale_inv, w, w_scale_inv = ctx.saved_tensors
        fp8_meta, measure = ctx.fp8_meta, ctx.measure
        TransformerEngineBaseModule.prepare_backward(fp8_meta, measure)
        recipe, table = fp8_meta["recipe"], fp8_meta["scaling_bwd"]
        dtype = get_fp8_te_dtype(recipe, fprop_tensor=False)
        matrix = grad.reshape(-1, grad.shape[-1]).to(ctx.dtype)
        at_random = get_fp8_te_sr(recipe, fprop_tensor=False)
        rounded = cast_to_fp8(matrix, table, _GRAD, dtype, at_random, measure["bwd_enabled"])
        gemm = (rounded, table.scale_inv[_GRAD], ctx.dtype)
        grads: list[torch.Tensor | None] = [None, None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = fp8_gemm(x, x_scale_inv, *gemm, transa=False, transb=True)
        if ctx.needs_input_grad[2]:
            if w.dtype != dtype:
                w = torch.ops.hpu.cast_to_fp8_v2(w, w_scale_inv.reciprocal(), dtype=dtype)[0]
            grads[1] = fp8_gemm(w, w_scale_inv, *gemm, transa=False).reshape(ctx.inp_shape)
        if ctx.needs_input_grad[3]:
            grads[2] = matrix.sum(0)
        weight, inp, bias = (
            None if g is None else g.to(d) for g, d in zip(grads, ctx.dtypes, strict=True)
        )
        return weight, None, inp, bias, None, None, None, None


class Linear(TransformerEngineBaseModule):
    """Computes `x @ weight.T + bias`, inside of `fp8_autocast` with products of fp8 matrices.

    There the input and the weight are rounded to the forward pass's format, and once more, under
    HYBRID, to the backward pass's; the output's gradient to that, at random under HYBRID
    (PT_TE_FORCE_SR_BWD decides otherwise). The bias's gradient is not rounded.

    A weight that is kept in fp8 from one microbatch to the next keeps the scale that it was
    rounded with.

    Args:
        in_features: I.
        out_features: O.
        sequence_parallel: False.
        tp_group: None.
        tp_size: 1.
        get_rng_state_tracker: None.
        init_method: Initializes the weight, in place; by default normal with deviation 0.023.
        bias: Whether there is a bias, from zero.
        return_bias: Whether to return the bias beside the output instead of adding it.
        params_dtype: The parameters' dtype; by default torch's default dtype.
        parallel_mode: None.
        skip_weight_param_allocation: Whether weight and bias come with every call.
        device: Where parameters are made.
        minimize_memory: Whether the backward pass rounds the weight again, instead of keeping it.

    Raises:
        NotImplementedError: An argument belongs to tensor parallelism.

    Source: Gaudi PyTorch bridge, transformer_engine/module/linear.py (commit f90046f).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        tp_group: dist_group_type | None = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        skip_weight_param_allocation: bool = False,
        device: torch.device | str = "hpu",
        minimize_memory: bool = False,
    ) -> None:
        super().__init__()
        if sequence_parallel or tp_group is not None or tp_size != 1 or parallel_mode is not None \
                or get_rng_state_tracker is not None:  # fmt: skip
            raise not_simulated(
                "transformer_engine.Linear with tensor or sequence parallelism",
                "Leave out sequence_parallel, tp_group, tp_size, parallel_mode and "
                "get_rng_state_tracker.",
            )
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = bias
        self.return_bias = return_bias
        self.minimize_memory = minimize_memory
        self._kept: _Rounded | None = None
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        if skip_weight_param_allocation:
            return
        made = {"device": device, "dtype": params_dtype}
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, **made))
        (init_method or get_default_init_method())(self.weight)
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(out_features, **made))

    def forward(
        self,
        inp: torch.Tensor,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        is_first_microbatch: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """Applies the layer.

        Args:
            inp: Shape (..., I).
            weight: Shape (O, I), instead of the layer's.
            bias: Shape (O,), instead of the layer's.
            is_first_microbatch: True rounds the weight and keeps it, False takes the kept one;
                None rounds it and keeps nothing.

        Returns:
            Shape (..., O), in the input's dtype or, under autocast, its; with `return_bias` a pair
            of this and the bias.

        Raises:
            ValueError: There is no weight, or none is kept.
        """
        weight = self.weight if weight is None else weight
        bias = self.bias if bias is None else bias
        if weight is None:
            raise ValueError(
                "Linear with skip_weight_param_allocation needs a weight with every call."
            )
        added = bias if self.use_bias and not self.return_bias else None
        if not FP8GlobalStateManager.is_fp8_enabled():
            self.check_passes_agree()
            out = torch.nn.functional.linear(inp, weight, added)
        else:
            out = self._in_fp8(inp, weight, added, is_first_microbatch)
        return (out, bias) if self.return_bias else out

    def _in_fp8(
        self,
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        is_first_microbatch: bool | None,
    ) -> torch.Tensor:
        is_autocast = torch.is_autocast_enabled("hpu")
        dtype = torch.get_autocast_dtype("hpu") if is_autocast else inp.dtype
        if not is_autocast and weight.dtype != dtype:
            raise ValueError(
                f"Linear got an input in {dtype} and has a weight in {weight.dtype}. Give both one "
                "dtype, or use torch.autocast('hpu')."
            )
        with self.prepare_forward() as measure, torch.autocast("hpu", enabled=False):
            measures = measure["fwd_enabled"]
            rounded = self._weight_of_microbatch(weight, is_first_microbatch, measures)
            keeps = not self.minimize_memory and not is_first_microbatch
            arguments = (inp, bias, self.fp8_meta, measure, dtype, keeps)
            return _LinearFunction.apply(weight, rounded, *arguments)

    def _weight_of_microbatch(
        self, weight: torch.Tensor, is_first: bool | None, measure: bool
    ) -> _Rounded | None:
        if is_first is None:
            return None
        if is_first:
            self._kept = _round(weight.detach(), self.fp8_meta, _WEIGHT, measure)
        if self._kept is None:
            raise ValueError(
                "Linear got is_first_microbatch=False before any True, so it keeps no weight."
            )
        return self._kept


__getattr__ = missing(__name__)
