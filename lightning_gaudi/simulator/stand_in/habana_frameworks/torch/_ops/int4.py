"""Weights in four bits with zero points, made into numbers: what GPTQ's and AWQ's layers call.

Source: Gaudi PyTorch bridge 1.24.0, hpu_ops/backend/convert_from_int4_gen.cpp (shapes, what is
refused); 1.19, habana_eager/eager_custom_op_register.cpp (schema) and
tests/pytest_working/any_mode/test_hpu_convert_from_int4.py (eight numbers in an int32, the lowest
bits first; `(number - zero_point) * scale`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..._release import release
from ._library import operator
from .fp8 import FP8_DTYPES, quantize

_TAKES_GROUPS = release().number >= 124
_SCHEMA = (
    "(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype"
    f"{', Tensor? group_index=None, bool disable_fp8_clipping=False' if _TAKES_GROUPS else ''}"
    ") -> Tensor"
)


def _shape_alone(
    input: torch.Tensor, scale: object, zero_point: object, out_dtype: torch.dtype, *more: object
) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], 8 * input.shape[-1]), dtype=out_dtype)


@operator(f"convert_from_uint4{_SCHEMA}", fake=_shape_alone)
def convert_from_uint4(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    out_dtype: torch.dtype,
    group_index: torch.Tensor | None = None,
    disable_fp8_clipping: bool = False,
) -> torch.Tensor:
    """Returns `(number - zero_point) * scale` of numbers between 0 and 15.

    Args:
        input: [..., N / 8], int32, of eight numbers each.
        scale: [..., N], or with fewer entries along one dimension, each of which is for a block.
        zero_point: None for none; as `scale`, or packed as `input`.
        out_dtype: Of the result; float32, bfloat16 or fp8.
        group_index: [K] of an input [K, N / 8]: the row of `scale` that each row has.
        disable_fp8_clipping: Whether what is too large for fp8 becomes infinite, or NaN.

    Raises:
        RuntimeError: The input is not packed in int32, or a shape does not fit.
    """
    more = (zero_point, out_dtype, group_index, disable_fp8_clipping)
    return _converted(_unpacked(input).float(), input, scale, *more)


@operator(f"convert_from_int4{_SCHEMA}", fake=_shape_alone)
def convert_from_int4(input: torch.Tensor, scale: torch.Tensor, *more: Any) -> torch.Tensor:
    """`convert_from_uint4` of numbers between -8 and 7."""
    return _converted(((_unpacked(input) ^ 8) - 8).float(), input, scale, *more)


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    if packed.dtype != torch.int32:
        raise RuntimeError(
            f"Numbers in four bits are packed in int32, eight each, got {packed.dtype}."
        )
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2)


def _converted(
    numbers: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    out_dtype: torch.dtype,
    group_index: torch.Tensor | None = None,
    disable_fp8_clipping: bool = False,
) -> torch.Tensor:
    if zero_point is not None:
        is_packed = zero_point.dtype == torch.int32 and zero_point.dtype == packed.dtype
        zeros = _unpacked(zero_point).float() if is_packed else zero_point.float()
        numbers = numbers - _spread(zeros, numbers.shape, group_index, "zero_point")
    result = numbers * _spread(scale.float(), numbers.shape, group_index, "scale")
    if out_dtype in FP8_DTYPES and not disable_fp8_clipping:
        return quantize(result, out_dtype)
    return result.to(out_dtype)


def _spread(
    values: torch.Tensor, shape: torch.Size, group_index: torch.Tensor | None, name: str
) -> torch.Tensor:
    """Repeats what is there once for a block, along the one dimension in which it differs."""
    if group_index is not None:
        return values[group_index.long()]
    differing = [dim for dim, size in enumerate(shape) if values.shape[dim : dim + 1] != (size,)]
    if not differing and values.dim() == len(shape):
        return values
    if (
        values.dim() != len(shape)
        or len(differing) > 1
        or shape[differing[0]] % values.shape[differing[0]]
    ):
        raise RuntimeError(
            f"{name} of shape {tuple(values.shape)} does not fit numbers of shape {tuple(shape)}: "
            "it may differ in one dimension, which it has to divide."
        )
    (dim,) = differing
    return values.repeat_interleave(shape[dim] // values.shape[dim], dim)
