"""Weights in four bits, NF4, made into numbers: what bitsandbytes calls on an HPU.

Two numbers are in a byte; each is an index into 16 levels between -1 and 1, and each block of
numbers has a scale, its largest absolute value. bitsandbytes quantizes by operators of torch's.

Source: Gaudi PyTorch bridge 1.24.0 (bcc5172c), hpu_ops/backend/nf4_ops.cpp; a copy of 2025,
eager_custom_op_register.cpp (schema until 1.21) and
tests/pytest_working/any_mode/test_hpu_dequantize_nf4.py (one dimension, a last block that is
shorter, levels and products in the dtype of the result). bitsandbytes 0.50, backends/hpu/ops.py:
which half of a byte comes first, by release. That `big_endian` is the default since 1.22 is
inferred from it.
"""

from __future__ import annotations

import functools

import torch

from ..._release import release
from ._library import operator

_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), appendix E."""
_HIGH_HALF_FIRST_SINCE = 122
_TAKES_ORDER = release().number >= _HIGH_HALF_FIRST_SINCE


def _shape_alone(
    input: torch.Tensor,
    absmax: torch.Tensor,
    blocksize: int,
    out_shape: list[int],
    out_dtype: torch.dtype,
    big_endian: bool = True,
) -> torch.Tensor:
    return input.new_empty(out_shape, dtype=out_dtype)


@operator(
    "dequantize_nf4(Tensor input, Tensor absmax, SymInt blocksize, int[] out_shape, "
    f"ScalarType out_dtype{', bool big_endian=True' if _TAKES_ORDER else ''}) -> Tensor",
    fake=_shape_alone,
)
def dequantize_nf4(
    input: torch.Tensor,
    absmax: torch.Tensor,
    blocksize: int,
    out_shape: list[int],
    out_dtype: torch.dtype,
    big_endian: bool = _TAKES_ORDER,
) -> torch.Tensor:
    """Returns the numbers that bytes of two stand for.

    Args:
        input: [N / 2], rounded up, uint8.
        absmax: [N / blocksize], rounded up: the scale of each block.
        blocksize: How many numbers share a scale.
        out_shape: Of N numbers.
        out_dtype: float32 or bfloat16; the product is rounded once, to it.
        big_endian: Whether the upper half of a byte comes first; in 1.20 the lower one always does.

    Raises:
        RuntimeError: The bytes or the scales are not as many as the numbers need.
    """
    num = torch.Size(out_shape).numel()
    _check(input, absmax, num, blocksize)
    pairs = _pairs(out_dtype, big_endian, input.device)
    out = torch.nn.functional.embedding(input.int(), pairs).reshape(-1)
    whole = num // blocksize * blocksize
    scales = absmax.to(out_dtype)
    out[:whole].reshape(-1, blocksize).mul_(scales[: num // blocksize, None])
    out[whole:num].mul_(scales[-1:])
    return out[:num].reshape(out_shape)


def _check(input: torch.Tensor, absmax: torch.Tensor, num: int, blocksize: int) -> None:
    if input.dtype != torch.uint8 or input.dim() != 1 or absmax.dim() != 1:
        raise RuntimeError(
            f"hpu::dequantize_nf4 takes bytes (uint8) and scales of one dimension, got "
            f"{input.dtype} of shape {tuple(input.shape)} and scales of {tuple(absmax.shape)}."
        )
    needed = (-(-num // 2), -(-num // blocksize))
    if (input.numel(), absmax.numel()) != needed:
        raise RuntimeError(
            f"hpu::dequantize_nf4 needs {needed[0]} bytes and {needed[1]} scales for {num} numbers "
            f"in blocks of {blocksize}, got {input.numel()} and {absmax.numel()}."
        )


@functools.cache
def _pairs(dtype: torch.dtype, big_endian: bool, device: torch.device) -> torch.Tensor:
    """[256, 2]: the two numbers of each byte; kept, as a kernel has them in its code."""
    levels = torch.tensor(_LEVELS, dtype=dtype)
    values = torch.arange(256)
    halves = (values >> 4, values & 15) if big_endian else (values & 15, values >> 4)
    return levels[torch.stack(halves, -1)].to(device)
