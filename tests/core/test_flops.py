"""The operations of models whose products can be counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

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


def test_products_in_place_and_of_groups_count():
    total, left, right = torch.zeros(4, 6), torch.ones(4, 8), torch.ones(8, 6)
    lefts, rights = torch.ones(3, 4, 8), torch.ones(3, 8, 6)
    with FlopCounter() as counter:
        total.addmm_(left, right)
        assert counter.num_flops == 2 * 4 * 8 * 6
        total.addbmm_(lefts, rights)
        torch.addbmm(total, lefts, rights)
        assert counter.num_flops == 2 * 4 * 8 * 6 * (1 + 3 + 3)
        torch.zeros(3, 4, 6).baddbmm_(lefts, rights)
        assert counter.num_flops == 2 * 4 * 8 * 6 * 10
    grouped = _formula(torch.ops.aten._grouped_mm.default)
    ends = torch.tensor([1, 3, 4], dtype=torch.int32)
    assert grouped(left, rights, ends, out_val=total) == 2 * 4 * 8 * 6
    parts = torch.zeros(3, 4, 6)
    assert grouped(lefts, rights, out_val=parts) == 3 * 2 * 4 * 8 * 6
    assert grouped(left, right, ends, out_val=parts) == 2 * 4 * 8 * 6


def test_what_interpolates_is_no_product():
    with FlopCounter() as counter:
        for num_dims, mode in enumerate(("linear", "bilinear", "trilinear"), 1):
            torch.nn.functional.interpolate(
                torch.ones(1, 3, *[8] * num_dims), scale_factor=2, mode=mode
            )
    assert counter.num_flops == 0


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


class _Attending(nn.Module):
    """A layer with attention, whose products torch's counter knows on the CPU, too."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).view(2, -1, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        if x.device.type == "cpu":  # by products: torch has no formula for the CPU's own kernel
            found = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            found = _vendors(q, k, v)
        return self.out(found.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("use_reentrant", [True, False, None])
def test_what_is_computed_again_counts_where_it_is_asked_for(use_reentrant):
    counts = {}
    for device, counter in (
        ("cpu", FlopCounterMode(display=False)),
        ("hpu", FlopCounter(counts_recomputed=True)),
        ("hpu once", FlopCounter()),
    ):
        model = _Attending().to(device[:3])
        x = torch.randn(2, 16, D).to(device[:3]).requires_grad_()
        with counter:
            if use_reentrant is None:
                found = model(x)
            else:
                found = checkpoint(model, x, use_reentrant=use_reentrant)
            found.sum().backward()
        is_torchs = isinstance(counter, FlopCounterMode)
        counts[device] = counter.get_total_flops() if is_torchs else counter.num_flops
    # Torch's checkpoint may stop before the last product, whose result nobody needs.
    assert counts["hpu"] == counts["cpu"]
    forward = 2 * 2 * 16 * D * 3 * D + 2 * 2 * 16 * D * D + 2 * 2 * 2 * 16 * 16 * D
    assert counts["hpu once"] == 3 * forward
