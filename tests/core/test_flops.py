"""The operations of models whose products can be counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_gaudi._core.flops import _formula
from lightning_gaudi.callbacks import FlopCounter

B, D, H = 8, 32, 64
FORWARD = 2 * B * D * H * 2
# Both gradients of the second layer, and that of the first one's weight: no input's is wanted.
STEP = FORWARD + 2 * B * D * H * 3


@pytest.fixture
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)).to("hpu")


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(B, D).to("hpu")


def test_products_of_forward_and_backward_are_counted(mlp, inputs):
    with FlopCounter() as counter:
        loss = mlp(inputs).sum()
        assert counter.num_flops == FORWARD
        loss.backward()
    mlp(inputs)
    assert counter.num_flops == STEP


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_checkpointing_computes_again_does_not_count(mlp, inputs, use_reentrant):
    inputs.requires_grad_(use_reentrant)
    with FlopCounter() as counter:
        checkpoint(mlp, inputs, use_reentrant=use_reentrant).sum().backward()
    assert counter.num_flops == STEP + use_reentrant * 2 * B * D * H


def test_a_compiled_model_counts_as_the_one_that_was_written(mlp, inputs):
    compiled = torch.compile(mlp, backend="hpu_backend", dynamic=False)
    for _ in range(2):  # before there is a graph, and after
        with FlopCounter() as counter:
            compiled(inputs).sum().backward()
        assert counter.num_flops == STEP
        compiled(inputs)


def _torchs(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v)


def _vendors(q, k, v):
    from lightning_gaudi import vendor

    return vendor.fused_sdpa().apply(q, k, v, None, 0.0, False, None)


@pytest.mark.parametrize("attend", [_torchs, _vendors])
def test_attention_is_two_products_forward_and_four_backward(attend):
    q = torch.randn(2, 4, 16, 8).to("hpu").requires_grad_()
    k, v = (torch.randn(2, 4, 24, 8).to("hpu").requires_grad_() for _ in "kv")
    product = 2 * 2 * 4 * 16 * 24 * 8
    with FlopCounter() as counter:
        out = attend(q, k, v)
        assert counter.num_flops == 2 * product
        out.sum().backward()
    assert counter.num_flops == 6 * product


def test_what_a_card_has_as_one_operator_counts_as_its_parts(mlp, inputs):
    with torch.inference_mode(), FlopCounter() as counter:  # where linear is not taken apart
        mlp(inputs)
        torch.matmul(inputs, inputs.T)
    assert counter.num_flops == FORWARD + 2 * B * B * D
    ops, gradient, weight = torch.ops.aten, torch.ones(B, H), torch.ones(H, D)
    backward = _formula(ops.linear_backward.default)
    wanted = [(True, True, True), (False, True, True)]
    assert [backward(inputs, gradient, weight, each, out_val=()) for each in wanted] == [
        2 * 2 * B * D * H,
        2 * B * D * H,
    ]
    backward = _formula(ops.matmul_backward.default)
    assert backward(gradient, inputs, weight.T, (True, True), out_val=()) == 2 * 2 * B * D * H


def test_a_product_without_a_formula_is_not_left_out():
    vector = torch.randn(D).to("hpu")
    quantized = torch.ones(D, D, dtype=torch.int8)
    with (
        FlopCounter(),
        pytest.raises(ValueError, match=r"cannot count .* of aten::_int_mm, .*flops_per_batch=<"),
    ):
        torch._int_mm(quantized, quantized)
    with FlopCounter() as counter:
        (vector * vector).sum().exp()
    assert counter.num_flops == 0
