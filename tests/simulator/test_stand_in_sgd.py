"""FusedSGD beside its steps, which test_stand_in_gradient_descent.py holds to torch's."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedSGD

from tests.simulator.descent import (
    CASES,
    FEWER,
    gradients,
    grouped,
    make_parameters,
    set_gradients,
    take_steps,
    train,
    values_of,
)


def test_sgd_resumes_from_a_state_dict():
    whole, _ = train(CASES["sgd_momentum"], "hpu", changes_rate=False)
    tensors = make_parameters()
    first = FusedSGD(grouped(tensors), lr=1.0, momentum=0.9)
    second = FusedSGD([{"params": tensors[:2]}, {"params": tensors[2:]}], lr=3.0)
    take_steps(first, tensors, stop=FEWER)
    second.load_state_dict(first.state_dict())
    assert [group["momentum"] for group in second.param_groups] == [0.9, 0.9]
    resumed = take_steps(second, tensors, start=FEWER)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


def test_sgd_computes_in_fp32_and_keeps_buffers_so():
    tensors = make_parameters(dtype=torch.bfloat16)
    optimizer = FusedSGD(tensors, lr=2**-6, momentum=0.9)
    before = values_of(tensors)
    set_gradients(tensors, values := next(gradients()))
    optimizer.step()
    for parameter, old, value in zip(tensors, before, values, strict=True):
        buffer = optimizer.state[parameter]["momentum_buffer"]
        assert buffer.dtype == torch.float32
        gradient = value.bfloat16().double()
        torch.testing.assert_close(buffer.cpu().double(), gradient, rtol=0, atol=0)
        # bf16 rounds once, to 8 bits.
        exact = (old - 2**-6 * gradient).bfloat16()
        assert parameter.dtype == torch.bfloat16
        torch.testing.assert_close(parameter.detach().cpu(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, r"lr=-1.0 must be at least 0\."),
        ({"lr": float("nan")}, "lr=nan must be at least 0"),
        ({"lr": 0.1, "momentum": -0.5}, "momentum=-0.5 must be"),
        ({"lr": 0.1, "weight_decay": -1}, "weight_decay=-1 must be"),
        ({"lr": 0.1, "dampening": -1}, "dampening=-1 must be"),
        (
            {"lr": 0.1, "nesterov": True},
            "needs a momentum above 0 and no dampening, got momentum=0",
        ),
        ({"lr": 0.1, "nesterov": True, "momentum": 0.9, "dampening": 0.1}, r"dampening=0.1\."),
    ],
    ids=str,
)
def test_sgd_refuses_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        FusedSGD(make_parameters(), **settings)


def test_sgd_needs_a_learning_rate():
    with pytest.raises(TypeError, match=r"no default learning rate. Pass lr="):
        FusedSGD(make_parameters())


def test_operators_refuse_what_they_cannot_do():
    weights, rate = [torch.ones(2, device="hpu")], torch.ones(1, device="hpu")
    with pytest.raises(RuntimeError, match=r"optimizer_sgd has no momentum buffers, got mom=0.9"):
        torch.ops.hpu.optimizer_sgd(weights, weights, rate, 0.0, 0.9, 0.0, False)
    with pytest.raises(RuntimeError, match=r"optimizer_sgd got no tensors .*gradients"):
        FusedSGD(make_parameters(), lr=0.1).step()


def test_sgd_momentum_takes_the_first_gradient_whole_where_it_is_told_that_it_is_the_first():
    weight, buffer = torch.zeros(2, device="hpu"), torch.full((2,), 7.0, device="hpu")
    gradient, one = torch.ones(2, device="hpu"), torch.ones(1, device="hpu")
    step, momentum = one.int(), one[0] * 0.5
    operator = torch.ops.hpu.optimizer_sgd_momentum
    operator([gradient], [weight], [buffer], step, one, momentum, 0.0, 0.3, False)
    assert buffer.tolist() == [1.0, 1.0]
    assert weight.tolist() == [-1.0, -1.0]
