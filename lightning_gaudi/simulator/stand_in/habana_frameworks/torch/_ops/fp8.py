"""Casts to fp8 and back, with exact rounding.

There are two formats: e4m3, with more precision, and e5m2, with more range. A Gaudi 2 keeps e4m3's
largest exponent for infinity, so that its largest number is 240; on later cards it is 448, as in
torch's `float8_e4m3fn`. A Gaudi 1 has no fp8.

Source: Gaudi PyTorch bridge 1.19, hpu_ops/backend/fp8_ops.cpp (schemas, what is refused) and
tests/pytest_working/any_mode/test_hpu_fp8_ops_any_mode.py (ranges, rounding, order of scaling).
"""

from __future__ import annotations

import torch

from .._card import card
from ._library import operator

Scale = torch.Tensor | float | list[float] | None

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
_MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}
_SMALLEST_EXPONENT = {torch.float8_e4m3fn: -6, torch.float8_e5m2: -14}
_WIDE = (torch.float32, torch.bfloat16)


def require_fp8(what: str) -> None:
    """Checks that the card has fp8.

    Raises:
        RuntimeError: It is a Gaudi 1.
    """
    if not card().has_float8:
        raise RuntimeError(
            f"{what} needs fp8, and this card is a {card().title}: fp8 needs a Gaudi 2 or later. "
            "Use bfloat16."
        )


def largest(dtype: torch.dtype) -> float:
    """Returns the largest finite number of an fp8 dtype on this card.

    Raises:
        ValueError: The dtype is no fp8.
    """
    if dtype not in FP8_DTYPES:
        raise ValueError(f"dtype={dtype} is neither torch.float8_e4m3fn nor torch.float8_e5m2.")
    e4m3_max = card().float8_e4m3_max
    is_e4m3 = dtype == torch.float8_e4m3fn and e4m3_max is not None
    return e4m3_max if is_e4m3 else torch.finfo(dtype).max


def quantize(x: torch.Tensor, dtype: torch.dtype, stochastic: bool = False) -> torch.Tensor:
    """Rounds to fp8: what is too large becomes the largest number, infinity and NaN stay visible.

    Args:
        x: fp32 or bf16.
        dtype: The fp8 dtype; e4m3 has no infinity, so an infinite element becomes NaN.
        stochastic: Whether to round up with the probability of the distance to the number below,
            instead of to the nearest, ties to even.
    """
    limit = largest(dtype)
    wide = x.float()
    rounded = _rounded_at_random(wide, dtype) if stochastic else wide
    # torch's own cast makes NaN of what is too large for e4m3; a card takes the largest number.
    bounded = rounded.clamp(-limit, limit)
    stays = wide if dtype == torch.float8_e5m2 else torch.full_like(wide, float("nan"))
    return torch.where(wide.isinf(), stays, bounded).to(dtype)


def _rounded_at_random(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    exponent = torch.frexp(x).exponent - 1
    exponent = exponent.clamp(min=_SMALLEST_EXPONENT[dtype]) - _MANTISSA_BITS[dtype]
    step = torch.exp2(exponent.float())
    return torch.floor(x / step + torch.rand_like(x)) * step


def times(x: torch.Tensor, scale: Scale, shape: list[int] | None = None) -> torch.Tensor:
    """Multiplies by a scale in the dtype of `x`, as a card does.

    Raises:
        RuntimeError: The scale has more or fewer elements than `shape`.
    """
    if scale is None:
        return x
    factor = torch.as_tensor(scale, device=x.device).to(x.dtype)
    if shape is None:
        return x * factor
    if factor.numel() > 1 and factor.numel() != torch.Size(shape).numel():
        raise RuntimeError(
            f"A scale of {factor.numel()} elements does not have the scale_shape {shape}."
        )
    return x * (factor if factor.numel() == 1 else factor.reshape(shape))


def largest_of(x: torch.Tensor, is_amax: bool) -> torch.Tensor:
    """Returns the largest absolute value, fp32 of shape (); an empty tensor if not wanted."""
    if not is_amax:
        return x.new_empty(0, dtype=torch.float32)
    return x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)


def _check_input(x: torch.Tensor, is_amax: bool, dtype: torch.dtype | None) -> torch.dtype:
    require_fp8("hpu::cast_to_fp8_v2")
    if dtype is None:
        raise ValueError("hpu::cast_to_fp8_v2 needs a dtype: pass torch.float8_e4m3fn or e5m2.")
    largest(dtype)
    if x.dtype in FP8_DTYPES and (is_amax or x.dtype != dtype):
        raise RuntimeError(
            f"hpu::cast_to_fp8_v2 takes {x.dtype} only with the same dtype and without is_amax, "
            f"got dtype={dtype}, is_amax={is_amax}. Cast it to bfloat16 first."
        )
    if x.dtype not in (*_WIDE, *FP8_DTYPES):
        raise RuntimeError(f"hpu::cast_to_fp8_v2 takes float32, bfloat16 or fp8, got {x.dtype}.")
    return dtype


def _v2_fake(
    x: torch.Tensor,
    scale: object = None,
    stochastic_rounding: bool = False,
    is_amax: bool = False,
    dtype: torch.dtype | None = None,
    scale_shape: object = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    amax = x.new_empty(() if is_amax else (0,), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), amax


_V2 = (
    "bool stochastic_rounding=False, bool is_amax=False, ScalarType? dtype=None, "
    "int[]? scale_shape=None) -> (Tensor, Tensor)"
)


# Decorators run from the last to the first, so the overload for tensors is defined first and tried
# first. torch prints the arguments that do not fit an overload, and printing a tensor waits for it.
@operator("cast_to_fp8_v2.scalar_list(Tensor input, float[] scale, " + _V2, fake=_v2_fake)
@operator("cast_to_fp8_v2.scalar(Tensor input, float scale, " + _V2, fake=_v2_fake)
@operator("cast_to_fp8_v2(Tensor input, Tensor? scale=None, " + _V2, fake=_v2_fake)
def cast_to_fp8_v2(
    input: torch.Tensor,
    scale: Scale = None,
    stochastic_rounding: bool = False,
    is_amax: bool = False,
    dtype: torch.dtype | None = None,
    scale_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplies by a scale and rounds to fp8.

    Args:
        input: fp32, bf16 or fp8 (then of `dtype`, and it comes back).
        scale: A factor, or one for each element of `scale_shape`.
        stochastic_rounding: See `quantize`.
        is_amax: Whether to measure the largest absolute value of `input`.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        scale_shape: The shape in which the scale broadcasts.

    Returns:
        The fp8 tensor, and the largest absolute value () in fp32, or an empty tensor.

    Raises:
        RuntimeError: The card has no fp8, or a dtype does not fit.
    """
    target = _check_input(input, is_amax, dtype)
    if input.dtype in FP8_DTYPES:
        return input.clone(), largest_of(input.float(), False)
    scaled = times(input, scale, scale_shape)
    return quantize(scaled, target, stochastic_rounding), largest_of(input, is_amax)


@operator(
    "cast_to_fp8(Tensor input, Tensor? scale, bool stochastic_rounding, Tensor(a!) out, "
    "Tensor(b!) amax) -> (Tensor(a!), Tensor(b!))",
    fake=lambda input, scale, stochastic_rounding, out, amax: (out, amax),
)
def cast_to_fp8(
    input: torch.Tensor,
    scale: torch.Tensor | None,
    stochastic_rounding: bool,
    out: torch.Tensor,
    amax: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes what `cast_to_fp8_v2` returns into `out`, and into `amax` unless that is empty."""
    is_amax = amax.numel() != 0
    target = _check_input(input, is_amax, out.dtype)
    if input.shape != out.shape:
        raise RuntimeError(f"out has shape {tuple(out.shape)}, the input {tuple(input.shape)}.")
    out.copy_(quantize(times(input, scale), target, stochastic_rounding))
    if is_amax:
        amax.fill_(largest_of(input, True))
    return out, amax


def _hybrid_fake(
    x: torch.Tensor,
    scale_152: object = None,
    scale_143: object = None,
    stochastic_rounding: bool = False,
    is_amax: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    amax = x.new_empty(() if is_amax else (0,), dtype=torch.float32)
    e4m3, e5m2 = (x.new_empty(x.shape, dtype=dtype) for dtype in FP8_DTYPES)
    return e5m2, e4m3, amax


@operator(
    "cast_to_fp8_hybrid(Tensor input, Tensor? scale_152=None, Tensor? scale_143=None, "
    "bool stochastic_rounding=False, bool is_amax=False) -> (Tensor, Tensor, Tensor)",
    fake=_hybrid_fake,
)
def cast_to_fp8_hybrid(
    input: torch.Tensor,
    scale_152: torch.Tensor | None = None,
    scale_143: torch.Tensor | None = None,
    stochastic_rounding: bool = False,
    is_amax: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rounds to both formats, each with its scale; only e5m2 is rounded stochastically.

    Returns:
        In e5m2, in e4m3, and the largest absolute value as `cast_to_fp8_v2`.
    """
    _check_input(input, is_amax, torch.float8_e5m2)
    e5m2 = quantize(times(input, scale_152), torch.float8_e5m2, stochastic_rounding)
    e4m3 = quantize(times(input, scale_143), torch.float8_e4m3fn)
    return e5m2, e4m3, largest_of(input, is_amax)


def _from_fake(
    x: torch.Tensor, scale: object, out_dtype: torch.dtype, scale_shape: object = None
) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=out_dtype)


_FROM = "ScalarType out_dtype, int[]? scale_shape=None) -> Tensor"


@operator("cast_from_fp8.scalar_list(Tensor input, float[] scale, " + _FROM, fake=_from_fake)
@operator("cast_from_fp8.scalar(Tensor input, float scale, " + _FROM, fake=_from_fake)
@operator("cast_from_fp8(Tensor input, Tensor? scale, " + _FROM, fake=_from_fake)
def cast_from_fp8(
    input: torch.Tensor,
    scale: Scale,
    out_dtype: torch.dtype,
    scale_shape: list[int] | None = None,
) -> torch.Tensor:
    """Casts fp8 to fp32 or bf16, and multiplies the result by a scale."""
    require_fp8("hpu::cast_from_fp8")
    if out_dtype not in _WIDE:
        raise RuntimeError(f"hpu::cast_from_fp8 gives float32 or bfloat16, not {out_dtype}.")
    return times(input.to(out_dtype), scale, scale_shape)
