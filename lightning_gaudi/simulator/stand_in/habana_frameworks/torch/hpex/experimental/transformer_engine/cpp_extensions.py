"""Casts and multiplies with scales from a module's tables."""

from __future__ import annotations

import torch

from ....._missing import missing
from .utils import FP8TensorMeta


def _update_amax_history(amax: torch.Tensor, fp8_meta_tensor: FP8TensorMeta, tensor: int) -> None:
    """Writes a measurement into the row of the present step, without a host sync."""
    history = fp8_meta_tensor.amax_history
    index = fp8_meta_tensor.amax_history_index
    row = torch.zeros(1, device=history.device).long() if not index.numel() else index.long()
    present = history.index_select(0, row)
    present[0, tensor] = amax.reshape(())
    history.index_copy_(0, row, present)


def cast_to_fp8(
    inp: torch.Tensor,
    fp8_meta_tensor: FP8TensorMeta,
    fp8_tensor: int,
    otype: torch.dtype,
    stochastic_rounding: bool = False,
    measure_amax: bool = True,
) -> torch.Tensor:
    """Rounds to fp8 with a tensor's scale, and notes its largest absolute value.

    Args:
        inp: fp32 or bf16.
        fp8_meta_tensor: The module's table.
        fp8_tensor: The tensor's place in it.
        otype: The fp8 dtype.
        stochastic_rounding: Whether to round at random.
        measure_amax: Whether to note the largest absolute value.
    """
    scale = fp8_meta_tensor.scale[fp8_tensor]
    cast, amax = torch.ops.hpu.cast_to_fp8_v2(inp, scale, stochastic_rounding, measure_amax, otype)
    if measure_amax:
        _update_amax_history(amax, fp8_meta_tensor, fp8_tensor)
    return cast


def cast_to_fp8_hybrid(
    inp: torch.Tensor,
    e5m2_meta_tensor: FP8TensorMeta,
    e4m3_meta_tensor: FP8TensorMeta,
    fp8_tensor: int,
    measure_amax: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds to both formats with a tensor's two scales; see `cast_to_fp8` for the arguments.

    Returns:
        In e5m2 and in e4m3.
    """
    scales = (e5m2_meta_tensor.scale[fp8_tensor], e4m3_meta_tensor.scale[fp8_tensor])
    e5m2, e4m3, amax = torch.ops.hpu.cast_to_fp8_hybrid(inp, *scales, False, measure_amax)
    if measure_amax:
        for table in (e5m2_meta_tensor, e4m3_meta_tensor):
            _update_amax_history(amax, table, fp8_tensor)
    return e5m2, e4m3


def cast_from_fp8(
    inp: torch.Tensor, fp8_meta_tensor: FP8TensorMeta, fp8_tensor: int, otype: torch.dtype
) -> torch.Tensor:
    """Returns in fp32 or bf16 the numbers that an fp8 tensor and its scale stand for."""
    return torch.ops.hpu.cast_from_fp8(inp, fp8_meta_tensor.scale_inv[fp8_tensor], otype)


def fp8_gemm(
    A: torch.Tensor,  # noqa: N803 (the vendor's name)
    A_scale_inv: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    B_scale_inv: torch.Tensor,  # noqa: N803
    out_dtype: torch.dtype,
    workspace: torch.Tensor | None = None,
    accumulate: bool = False,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_bias: bool = False,
    use_split_accumulator: bool = False,
    transa: bool = True,
    transb: bool = False,
) -> torch.Tensor:
    """Returns `B @ A.T` of fp8 matrices, where `A` is the weight.

    Args:
        A: Shape (N, K), or (K, N) without `transa`.
        A_scale_inv: What one unit of A means.
        B: Shape (M, K), or (K, M) with `transb`.
        B_scale_inv: What one unit of B means.
        out_dtype: The result's dtype.
        workspace: No effect.
        accumulate: Whether to add to `out`.
        out: Where to write the result.
        bias: Added if `use_bias`.
        use_bias: Whether there is a bias.
        use_split_accumulator: False.
        transa: Whether to transpose A.
        transb: Whether to transpose B.

    Raises:
        ValueError: `use_split_accumulator` is set.
    """
    if use_split_accumulator:
        raise ValueError("fp8_gemm on HPU has no split accumulator. Leave it out.")
    matrices = (B, transb, A, transa, out, out_dtype, B_scale_inv, A_scale_inv)
    added = (bias if use_bias else None, accumulate)
    if out is None:
        return torch.ops.hpu.fp8_gemm_v2(*matrices, *added)
    return torch.ops.hpu.fp8_gemm(*matrices, *added, out)


__getattr__ = missing(__name__)
