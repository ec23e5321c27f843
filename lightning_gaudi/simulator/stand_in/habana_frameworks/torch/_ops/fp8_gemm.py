"""Multiplies fp8 matrices."""

from __future__ import annotations

import torch

from ._library import operator
from .fp8 import FP8_DTYPES, Scale, require_fp8


def _product(
    matrices: tuple[torch.Tensor, torch.Tensor],
    transposed: tuple[bool, bool],
    scales: tuple[Scale, Scale],
    extra: tuple[torch.Tensor | None, torch.Tensor | None],
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Returns `a @ b * scale_a * scale_b` plus the terms of `extra`, with all sums in fp32."""
    require_fp8("hpu::fp8_gemm")
    for matrix in matrices:
        if matrix.dtype not in FP8_DTYPES:
            raise RuntimeError(f"hpu::fp8_gemm multiplies fp8 matrices, got {matrix.dtype}.")
    a, b = (
        m.float().transpose(-2, -1) if is_transposed else m.float()
        for m, is_transposed in zip(matrices, transposed, strict=True)
    )
    result = torch.matmul(a, b)
    for scale, dim in zip(scales, (-2, -1), strict=True):
        result = _scaled(result, scale, dim)
    for term in extra:
        if term is not None:
            result = result + term.float()
    return result.to(out_dtype)


def _scaled(result: torch.Tensor, scale: Scale, dim: int) -> torch.Tensor:
    """Multiplies by one factor, or by one for each row (dim -2) or column (dim -1)."""
    if scale is None:
        return result
    factor = torch.as_tensor(scale, device=result.device).float().flatten()
    if factor.numel() == 1:
        return result * factor.reshape(())
    if factor.numel() != result.shape[dim]:
        raise RuntimeError(
            f"hpu::fp8_gemm got a scale of {factor.numel()} elements for "
            f"{result.shape[dim]} {'rows' if dim == -2 else 'columns'}. Pass 1 or as many."
        )
    return result * (factor.unsqueeze(-1) if dim == -2 else factor)


def _shape(a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Size:
    left = a.transpose(-2, -1) if trans_a else a
    right = b.transpose(-2, -1) if trans_b else b
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return torch.Size((*batch, left.shape[-2], right.shape[-1]))


def _v2_fake(
    A: torch.Tensor,  # noqa: N803 (the vendor's name)
    trans_A: bool,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    trans_B: bool,  # noqa: N803
    D: object,  # noqa: N803
    out_dtype: torch.dtype,
    *args: object,
    **kwargs: object,
) -> torch.Tensor:
    return A.new_empty(_shape(A, B, trans_A, trans_B), dtype=out_dtype)


_MATRICES = "Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
_REST = "Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) -> Tensor"


@operator(f"fp8_gemm_v2.scalar_list({_MATRICES}float[] A_scale_inv, float[] B_scale_inv, {_REST}",
          fake=_v2_fake)  # fmt: skip
@operator(f"fp8_gemm_v2.scalar({_MATRICES}float A_scale_inv, float B_scale_inv, {_REST}",
          fake=_v2_fake)  # fmt: skip
@operator(f"fp8_gemm_v2({_MATRICES}Tensor? A_scale_inv=None, Tensor? B_scale_inv=None, {_REST}",
          fake=_v2_fake)  # fmt: skip
def fp8_gemm_v2(
    A: torch.Tensor,  # noqa: N803 (the vendor's name)
    trans_A: bool,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    trans_B: bool,  # noqa: N803
    D: torch.Tensor | None,  # noqa: N803
    out_dtype: torch.dtype,
    A_scale_inv: Scale = None,  # noqa: N803
    B_scale_inv: Scale = None,  # noqa: N803
    bias: torch.Tensor | None = None,
    accumulate: bool = False,
    B_scale_shape: list[int] | None = None,  # noqa: N803
) -> torch.Tensor:
    """Multiplies two fp8 matrices, or batches of them.

    Args:
        A: Shape (..., M, K), or (..., K, M) with `trans_A`.
        trans_A: Whether to transpose it.
        B: Shape (..., K, N), or (..., N, K) with `trans_B`.
        trans_B: Whether to transpose it.
        D: What to add with `accumulate`.
        out_dtype: The result's dtype.
        A_scale_inv: What one unit of A means; one number, or one a row.
        B_scale_inv: What one unit of B means; one number, or one a column.
        bias: Added; it broadcasts to (..., M, N).
        accumulate: Whether to add D.
        B_scale_shape: No effect: the columns' scales are in their order.

    Returns:
        Shape (..., M, N).

    Raises:
        RuntimeError: The card has no fp8, a matrix has another dtype, or D is missing.
    """
    if accumulate and D is None:
        raise RuntimeError("hpu::fp8_gemm_v2 with accumulate needs D, what it adds to.")
    extra = (bias, D if accumulate else None)
    return _product((A, B), (trans_A, trans_B), (A_scale_inv, B_scale_inv), extra, out_dtype)


@operator(
    "fp8_gemm(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor D, ScalarType out_dtype, "
    "Tensor? A_scale_inv, Tensor? B_scale_inv, Tensor? bias, bool accumulate, Tensor(a!) out) "
    "-> Tensor(a!)",
    fake=lambda *args: args[-1],
)
def fp8_gemm(
    A: torch.Tensor,  # noqa: N803 (the vendor's name)
    trans_A: bool,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    trans_B: bool,  # noqa: N803
    D: torch.Tensor,  # noqa: N803
    out_dtype: torch.dtype,
    A_scale_inv: torch.Tensor | None,  # noqa: N803
    B_scale_inv: torch.Tensor | None,  # noqa: N803
    bias: torch.Tensor | None,
    accumulate: bool,
    out: torch.Tensor,
) -> torch.Tensor:
    """Writes what `fp8_gemm_v2` returns into `out`, which may be D."""
    extra = (bias, D if accumulate else None)
    scales = (A_scale_inv, B_scale_inv)
    return out.copy_(_product((A, B), (trans_A, trans_B), scales, extra, out_dtype))
