"""LARS and the momentum that it wraps, where they are used in other ways than together."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedLars, FusedResourceApplyMomentum

from tests.simulator.descent import FEWER, gradients, make_parameters, set_gradients, take_steps

# fp32 against fp64, as in test_stand_in_gradient_descent.py.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _momentum(tensors, **settings):
    return FusedResourceApplyMomentum(tensors, **({"lr": 0.1, "momentum": 0.9} | settings))


def test_lars_around_an_optimizer_of_rate_1_is_the_papers():
    """Algorithm 1 of arXiv 1708.03888, with a decay of 0.1 and a momentum of 0.9."""
    expected = [p.detach() for p in make_parameters("cpu", torch.float64)]
    buffers = [torch.zeros_like(w) for w in expected]
    for values in gradients():
        for w, v, g in zip(expected, buffers, values, strict=True):
            local = 0.02 * w.norm() / (g.double().norm() + 0.1 * w.norm())
            v.mul_(0.9).add_(local * (g.double() + 0.1 * w))
            w.sub_(v)
    tensors = make_parameters()
    sgd = torch.optim.SGD(tensors, lr=1.0, momentum=0.9, weight_decay=0.1)
    lars = FusedLars(sgd, [1] * len(tensors), eeta=0.02, eps=0.0)
    torch.testing.assert_close(take_steps(lars, tensors), expected, **CLOSE)
    assert sgd.param_groups[0]["weight_decay"] == 0.1, "kept from SGD, and given back"


def test_lars_takes_ratio_1_where_a_norm_is_zero():
    zero, one = torch.zeros(2, device="hpu"), torch.ones(2, device="hpu")
    steps = [one.clone(), zero.clone()]
    rate = torch.tensor(0.5).to("hpu")
    torch.ops.hpu.optimizer_lars([zero, one], steps, [1, 1], 0.001, 0.1, 1e-8, rate)
    assert steps[0].tolist() == [0.5, 0.5]
    torch.testing.assert_close(steps[1].cpu(), torch.full((2,), 0.05))


def test_lars_shares_groups_and_state_with_what_it_wraps():
    tensors = make_parameters()
    momentum = _momentum([{"params": tensors[:2]}, {"params": tensors[2:], "weight_decay": 0.5}])
    lars = FusedLars(momentum, [1, 0])
    scheduler = torch.optim.lr_scheduler.LambdaLR(lars, lambda step: 0.5**step)
    set_gradients(tensors, next(gradients()))
    lars.step()
    scheduler.step()
    assert [group["lr"] for group in momentum.param_groups] == [0.05, 0.05]
    assert [group["weight_decay"] for group in momentum.param_groups] == [0, 0.5]
    assert set(lars.param_groups[0]) >= {"skip_mask", "eeta", "eps"}
    assert lars.state is momentum.state
    lars.zero_grad()
    assert tensors[0].grad.abs().sum() == 0
    lars.zero_grad(set_to_none=True)
    assert tensors[0].grad is None
    lars.step()


def test_lars_gives_weight_decay_back_after_an_error():
    tensors = make_parameters()
    lars = FusedLars(momentum := _momentum(tensors, weight_decay=0.5), [1] * len(tensors))
    tensors[0].grad = torch.ones_like(tensors[0])
    lars.step()
    set_gradients(tensors, next(gradients()))
    with pytest.raises(RuntimeError, match="3 of 4 parameters of a group have their first"):
        lars.step()
    assert momentum.param_groups[0]["weight_decay"] == 0.5


def test_lars_resumes_through_the_optimizer_that_it_wraps():
    mask = [1, 0, 1, 0]
    whole, first, second = (make_parameters() for _ in range(3))
    expected = take_steps(FusedLars(_momentum(whole), mask), whole)
    before, after = _momentum(first), _momentum(second, lr=7.0)
    take_steps(FusedLars(before, mask), first, stop=FEWER)
    after.load_state_dict(before.state_dict())
    for new, old in zip(second, first, strict=True):
        new.data.copy_(old.data)
    resumed = take_steps(FusedLars(after, mask), second, start=FEWER)
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def test_lars_says_that_loading_its_state_does_not_reach_the_wrapped_optimizer():
    tensors = make_parameters()
    momentum = _momentum(tensors)
    lars = FusedLars(momentum, [1] * len(tensors))
    state = lars.state_dict()
    state["param_groups"][0]["lr"] = 7.0
    with pytest.warns(UserWarning, match="does not reach the wrapped FusedResourceApplyMomentum"):
        lars.load_state_dict(state)
    assert (lars.param_groups[0]["lr"], momentum.param_groups[0]["lr"]) == (7.0, 0.1)


def test_lars_refuses_a_short_mask_and_warns_of_a_long_one():
    tensors = make_parameters()
    with pytest.raises(ValueError, match="skip_mask has 1 entries, a group has 4 parameters"):
        FusedLars(_momentum(tensors), [1])
    halves = [{"params": tensors[:2]}, {"params": tensors[2:]}]
    with pytest.warns(UserWarning, match="4 entries, the longest group 2 parameters. Every group"):
        FusedLars(_momentum(halves), [1, 1, 0, 0])


def test_momentum_adds_its_first_step_and_subtracts_the_others():
    """TensorFlow's ResourceApplyKerasMomentum but for the first sign; lr enters nowhere."""
    first, *others = ([value.double() for value in values] for values in gradients())
    expected = [p.detach() for p in make_parameters("cpu", torch.float64)]
    buffers = first
    for w, m in zip(expected, buffers, strict=True):
        w.add_(m)
    for steps in others:
        buffers = [0.9 * m - d for m, d in zip(buffers, steps, strict=True)]
        for w, m in zip(expected, buffers, strict=True):
            w.add_(m)
    tensors = make_parameters()
    optimizer = _momentum(tensors, lr=123.0)
    torch.testing.assert_close(take_steps(optimizer, tensors), expected, **CLOSE)
    buffer = optimizer.state[tensors[0]]["momentum_buffer"]
    torch.testing.assert_close(buffer.cpu().double(), buffers[0], **CLOSE)


def test_momentum_of_zero_climbs_and_says_so():
    parameter = torch.nn.Parameter(torch.zeros(2, device="hpu"))
    with pytest.warns(UserWarning, match="with momentum=0 every step adds the gradient"):
        optimizer = FusedResourceApplyMomentum([parameter], lr=0.1)
    for _ in range(2):
        parameter.grad = torch.ones(2, device="hpu")
        optimizer.step()
    assert parameter.tolist() == [2.0, 2.0]
    assert optimizer.state[parameter] == {"momentum_buffer": None}


def test_momentum_refuses_and_warns_of_settings():
    tensors = make_parameters()
    for name in ("lr", "momentum", "weight_decay"):
        with pytest.raises(ValueError, match=f"{name}=-1 must be at least 0"):
            _momentum(tensors, **{name: -1})
    with pytest.raises(ValueError, match="nesterov=True needs a momentum above 0, got momentum=0"):
        _momentum(tensors, nesterov=True, momentum=0)
    with pytest.warns(UserWarning, match="nesterov=True has no effect"):
        _momentum(tensors, nesterov=True)


def test_momentum_operator_refuses_lists_that_do_not_fit():
    one = torch.ones(2, device="hpu")
    with pytest.raises(RuntimeError, match=r"lists of one length, got .*'buffers': 1"):
        torch.ops.hpu.optimizer_resource_apply_momentum([one, one, one], [one, one], 0.9)
