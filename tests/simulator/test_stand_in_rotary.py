"""Rotary position embeddings against the same formulas on the CPU, forward and backward.

B batch, H heads, T tokens, D head dim.
"""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.kernels import (
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingHelperV3,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)

PAIRWISE = RotaryPosEmbeddingMode.PAIRWISE


def _halves_turned(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _random(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _compare(function, reference, p, *rest):
    ours, theirs = p.to("hpu").requires_grad_(), p.clone().requires_grad_()
    out, expected = function(ours, *(t.to("hpu") if torch.is_tensor(t) else t for t in rest)), None
    expected = reference(theirs, *rest)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    out.backward(grad.to("hpu"))
    expected.backward(grad)
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("offset", [0, 3])
def test_v1_turns_halves_by_tables_from_an_offset(offset):
    def reference(p, cos, sin, offset):
        cos, sin = (t[..., offset : p.shape[0] + offset] for t in (cos, sin))
        return p * cos + _halves_turned(p) * sin

    tables = [_random(8, 1, 8 + offset), _random(8, 1, 9 + offset)[..., 1:]]
    _compare(RotaryPosEmbeddingHelperV1.apply, reference, _random(8, 4, 8), *tables, offset)


def test_v2_turns_halves_by_each_tokens_position():
    def reference(p, cos, sin, position_ids):
        cos, sin = (t[0, 0][position_ids].unsqueeze(1) for t in (cos, sin))
        return p * cos + _halves_turned(p) * sin

    positions = torch.randint(32, (2, 5), generator=torch.Generator().manual_seed(1))
    tables = [_random(1, 1, 32, 6), _random(1, 1, 33, 6)[:, :, 1:]]
    _compare(RotaryPosEmbeddingHelperV2.apply, reference, _random(2, 4, 5, 6), *tables, positions)


@pytest.mark.parametrize("rotary", [8, 4])
def test_v3_turns_pairs_of_the_first_elements(rotary):
    def reference(p, cache):
        num_tokens, batch, heads, _ = p.shape
        pairs = torch.view_as_complex(
            p[..., :rotary].reshape(num_tokens, batch, heads, -1, 2).contiguous()
        )
        angles = torch.view_as_complex(cache[:num_tokens].contiguous())
        turned = torch.view_as_real(pairs * angles[:, None, None]).flatten(-2)
        return torch.cat((turned, p[..., rotary:]), -1)

    _compare(
        RotaryPosEmbeddingHelperV3.apply,
        reference,
        _random(5, 2, 3, 8),
        _random(16, rotary // 2, 2),
    )


def test_pairs_are_turned_without_positions():
    p, cos, sin = _random(2, 4, 3, 8), _random(2, 4, 1, 8), _random(2, 5, 1, 8)[:, 1:]
    turned = torch.stack((-p[..., 1::2], p[..., ::2]), -1).flatten(-2)
    out = apply_rotary_pos_emb(*(t.to("hpu") for t in (p, cos, sin)), None, 0, PAIRWISE)
    torch.testing.assert_close(out.cpu(), p * cos + turned * sin)


def test_one_fp32_tensor_makes_the_result_fp32():
    p, cos, sin = (_random(1, 2, 4, 6).to("hpu") for _ in range(3))
    assert apply_rotary_pos_emb(p.bfloat16(), cos, sin.half()).dtype == torch.float32
    assert apply_rotary_pos_emb(p.bfloat16(), cos.half(), sin.half()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("shape", "rest", "message"),
    [
        ((1, 2, 4, 5), (None, 0), "has 5 elements; a rotation needs pairs"),
        ((1, 2, 4, 6), (torch.zeros(1, 4), 2), "offset=2 is for mode BLOCKWISE without"),
        ((1, 2, 4, 6), (torch.zeros(1, 4), 0, PAIRWISE), "position_ids are for mode BLOCKWISE"),
        ((2, 2, 4, 6), (torch.zeros(2, 4).long(), 0), r"shape \(2, 2, 4, 6\) do not go with"),
    ],
)
def test_what_cannot_be_turned_is_refused(shape, rest, message):
    p = torch.ones(shape, device="hpu")
    rest = [t.to("hpu") if torch.is_tensor(t) else t for t in rest]
    with pytest.raises(ValueError, match=message):
        apply_rotary_pos_emb(p, p, p, *rest)
