"""Weights in four bits on the device: NF4 as bitsandbytes calls it, and those with zero points."""

from __future__ import annotations

import itertools

import pytest
import torch
from habana_frameworks.torch._ops.nf4 import _LEVELS

from tests.helpers.forked import fork_python

OPS = torch.ops.hpu
BLOCK = 64


def _nf4(num, dtype):
    """Bytes, scales and the numbers that they stand for, one after the other."""
    draw = torch.Generator().manual_seed(num)
    packed = torch.randint(256, (-(-num // 2),), dtype=torch.uint8, generator=draw)
    scales = torch.rand(-(-num // BLOCK), generator=draw).to(dtype)
    halves = itertools.chain.from_iterable(divmod(byte, 16) for byte in packed.tolist())
    levels = torch.tensor([_LEVELS[half] for half in halves], dtype=dtype)[:num]
    return packed, scales, levels * scales.repeat_interleave(BLOCK)[:num]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num", [62, 63, 128, 500])
def test_nf4_is_made_into_numbers(num, dtype):
    packed, scales, expected = _nf4(num, dtype)
    there = packed.to("hpu"), scales.to("hpu")
    got = OPS.dequantize_nf4(*there, BLOCK, (num,), dtype)
    assert got.device.type == "hpu"
    assert torch.equal(got.cpu(), expected)
    swapped = (packed >> 4 | packed << 4).to("hpu")
    assert torch.equal(
        OPS.dequantize_nf4(swapped, there[1], BLOCK, [num], dtype, big_endian=False).cpu(), expected
    )


def test_nf4_of_the_wrong_size_is_refused():
    packed, scales, _ = _nf4(128, torch.float32)
    packed, scales = packed.to("hpu"), scales.to("hpu")
    with pytest.raises(RuntimeError, match=r"needs 65 bytes and 3 scales for 130 .* got 64 and 2"):
        OPS.dequantize_nf4(packed, scales, BLOCK, (130,), torch.float32)
    with pytest.raises(
        RuntimeError, match=r"of one dimension, got torch\.uint8 of shape \(1, 64\)"
    ):
        OPS.dequantize_nf4(packed[None], scales, BLOCK, (128,), torch.float32)


QUANTIZED = """
    import importlib.metadata, torch, bitsandbytes as bnb
    torch.manual_seed(0)
    weight = torch.randn(96, 130)
    for is_double in (False, True):
        found = []
        for device in ("cpu", "hpu"):
            state = bnb.functional.quantize_4bit(
                weight.to(device), quant_type="nf4", compress_statistics=is_double
            )
            found.append(bnb.functional.dequantize_4bit(*state).cpu())
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)
        assert (found[1] - weight).abs().max() < 0.6
    print(importlib.metadata.version("habana-torch-plugin"))
    """


@pytest.mark.slow_but("1.24")
@pytest.mark.parametrize("key", ["1.20", "1.24"])
def test_bitsandbytes_asks_each_release_in_its_order(key):
    pytest.importorskip("bitsandbytes", reason="needs the extra llm")
    out = fork_python(QUANTIZED, env={"LIGHTNING_GAUDI_SIMULATE_RELEASE": key}).stdout
    assert out.split()[-1].startswith(f"{key}.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zeros", ["none", "packed", "plain"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_packed_integers_are_made_into_numbers(is_signed, zeros, dtype):
    draw = torch.Generator().manual_seed(0)
    bits = torch.randint(16, (32, 16), generator=draw)
    scale = torch.rand(4, 16, generator=draw).to(dtype)
    points = torch.randint(8, (4, 16), generator=draw)
    numbers = torch.where(bits > 7, bits - 16, bits) if is_signed else bits
    expected = (numbers - points.repeat_interleave(8, 0) * (zeros != "none")).float()
    expected = (expected * scale.float().repeat_interleave(8, 0)).to(dtype)
    operator = OPS.convert_from_int4 if is_signed else OPS.convert_from_uint4
    given = {"none": None, "packed": _packed(points), "plain": points.to(dtype)}[zeros]
    arguments = [_packed(bits), scale, given]
    there = [None if each is None else each.to("hpu") for each in arguments]
    assert torch.equal(operator(*there, dtype).cpu(), expected)
    groups = torch.arange(32).flip(0) // 8
    flipped = operator(there[0], *[g if g is None else g.flip(0) for g in there[1:]], dtype,
                       groups.int().to("hpu"))  # fmt: skip
    assert torch.equal(flipped.cpu(), expected)
    with pytest.raises(RuntimeError, match=r"scale of shape \(3, 16\) does not fit .* \(32, 16\)"):
        operator(there[0], there[1][:3], None, dtype)


def _packed(numbers):
    eights = numbers.unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)
    return eights.sum(-1).to(torch.int32)
