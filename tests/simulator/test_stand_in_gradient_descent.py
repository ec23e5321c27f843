"""The vendor's fused gradient descent against torch's and against formulas, in fp64 on the CPU."""

from __future__ import annotations

import sys

import pytest
import torch
from habana_frameworks.torch.hpex import optimizers
from habana_frameworks.torch.hpex.optimizers import FusedAdagrad, FusedSGD, fused_adagrad

from tests.helpers.process import run
from tests.simulator.descent import (
    CASES,
    FEWER,
    GROUPS,
    LAZY_CASES,
    NUM_STEPS,
    gradients,
    grouped,
    make_parameters,
    set_gradients,
    take_steps,
    train,
)

# fp32 against fp64: six steps of up to 0.1.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
NUM_GROUP_STEPS = len(GROUPS) * (NUM_STEPS - 2)
"""After the second step."""


@pytest.fixture(scope="module")
def lazy(tmp_path_factory):
    """What every case came to in a process of lazy mode."""
    file = tmp_path_factory.mktemp("lazy") / "results.pt"
    run([sys.executable, "-m", "tests.simulator.descent", str(file)], env={"PT_HPU_LAZY_MODE": "1"})
    return torch.load(file, weights_only=True)


def _torch_sgd(**settings):
    return lambda groups: torch.optim.SGD(groups, lr=1.0, **settings)


def _sgd_from_zero_buffers(groups):
    """torch's SGD takes the first gradient whole; with buffers that exist it dampens it."""
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, dampening=0.3)
    for group in groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _lars_and_momentum():
    """You et al. 2017 with TensorFlow's momentum, whose first step has the vendor's sign."""
    weights = [p.detach() for p in make_parameters("cpu", torch.float64)]
    buffers = [None] * len(weights)
    for step, values in enumerate(gradients()):
        for i, (w, g) in enumerate(zip(weights, values, strict=True)):
            lr, decay = GROUPS[i // 2]["lr"], GROUPS[i // 2]["weight_decay"]
            lr = lr / 2 if step >= FEWER else lr
            d = lr * g.double()
            if i % 2 == 0:
                norm, g_norm = w.norm(), g.double().norm()
                d = lr * 0.02 * norm / (g_norm + decay * norm + 1e-8) * (g.double() + decay * w)
            buffers[i] = d if buffers[i] is None else 0.9 * buffers[i] - d
            w += buffers[i]
    return weights


REFERENCES = {
    "sgd": _torch_sgd(),
    "sgd_momentum": _torch_sgd(momentum=0.9),
    "sgd_nesterov": _torch_sgd(momentum=0.9, nesterov=True),
    "sgd_dampening": _sgd_from_zero_buffers,
    "adam": lambda groups: torch.optim.Adam(groups, amsgrad=True),
}


def _expected(name):
    if name == "lars":
        return _lars_and_momentum()
    return train(REFERENCES[name], "cpu", torch.float64)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_reference(name, lazy):
    """In two groups of settings of their own, through a change of the learning rates."""
    eager, _ = train(CASES[name], "hpu")
    expected = _expected(name)
    torch.testing.assert_close(eager, expected, **CLOSE)
    torch.testing.assert_close(lazy[name]["weights"], expected, **CLOSE)
    assert lazy[name]["messages"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES | LAZY_CASES)
def test_lazy_steps_compile_nothing_after_the_second_and_only_lars_waits(name, lazy):
    counts = lazy[name]["after_second_step"]
    assert counts["num_compilations"] == 0
    # Once for each group: the vendor's kernel takes the learning rate as a number.
    assert counts["num_host_syncs"] == (NUM_GROUP_STEPS if name == "lars" else 0)


def test_adam_ends_the_graph_twice_for_each_group(lazy):
    assert lazy["adam"]["after_second_step"]["num_mark_steps"] == 2 * NUM_GROUP_STEPS


def _torch_adagrad(**settings):
    """Its weights with one rate for both groups, which does not change."""

    def make(groups):
        return torch.optim.Adagrad([group | {"lr": 0.1} for group in groups], **settings)

    return train(make, "cpu", torch.float64, changes_rate=False)[0]


def test_adagrad_is_torchs_in_lazy_mode(lazy):
    settings = {"lr": 0.1, "lr_decay": 0.2, "initial_accumulator_value": 0.5, "eps": 1e-3}
    expected = _torch_adagrad(**settings)
    torch.testing.assert_close(lazy["adagrad"]["weights"], expected, **CLOSE)
    assert lazy["adagrad"]["messages"] == []


def test_adagrad_keeps_the_rate_that_it_was_made_with_and_says_so(lazy):
    result = lazy["adagrad_with_rates"]
    expected = _torch_adagrad()
    torch.testing.assert_close(result["weights"], expected, **CLOSE)
    ((message, filename),) = result["messages"]
    assert "lr=0.05 of parameter group 1 has no effect; the 0.1 that" in message
    assert filename.endswith("descent.py"), "the warning points to the caller's line"
    assert [group["lr_t"].item() for group in result["tensors"]] == pytest.approx([0.1, 0.1])
    assert [group["step_t"].item() for group in result["tensors"]] == [6, 6]


def test_adagrad_refuses_eager_mode():
    tensors = make_parameters()
    optimizer = FusedAdagrad(tensors)
    set_gradients(tensors, next(gradients()))
    with pytest.raises(RuntimeError, match=r"lazy mode only.*torch.optim.Adagrad, or set PT_HPU"):
        optimizer.step()


def test_adagrad_resumes_with_the_rate_and_the_step_of_the_state_dict(monkeypatch):
    monkeypatch.setattr(fused_adagrad, "is_lazy", lambda: True)
    settings = {"lr": 0.1, "lr_decay": 0.2}
    expected = _torch_adagrad(**settings)
    tensors = make_parameters()
    groups = [group | {"lr": 0.1} for group in grouped(tensors)]
    first, second = FusedAdagrad(groups, **settings), FusedAdagrad([*map(dict, groups)], lr=7.0)
    take_steps(first, tensors, stop=FEWER)
    second.load_state_dict(first.state_dict())
    resumed = take_steps(second, tensors, start=FEWER)
    torch.testing.assert_close(resumed, expected, **CLOSE)


def test_adagrad_refuses_groups_that_come_later(monkeypatch):
    monkeypatch.setattr(fused_adagrad, "is_lazy", lambda: True)
    tensors = make_parameters()
    optimizer = FusedAdagrad(tensors[:1])
    optimizer.add_param_group({"params": tensors[1:]})
    set_gradients(tensors, next(gradients()))
    with pytest.raises(RuntimeError, match=r"group 1 was added after .* Give all groups to Fused"):
        optimizer.step()


def test_step_returns_the_closures_loss_and_does_not_wait_for_the_device():
    tensors = make_parameters()
    loss = torch.ones((), device="hpu")

    def closure():
        sum(p.sum() for p in tensors).backward()
        return loss

    momentum = optimizers.FusedResourceApplyMomentum(tensors, lr=0.1, momentum=0.9)
    lars = optimizers.FusedLars(momentum, [1] * len(tensors))
    with torch.hpu.metric_localcontext("host_sync") as metric:
        assert FusedSGD(tensors, lr=0.1, momentum=0.9).step(closure) is loss
        assert momentum.step(closure) is loss
        lars.step()
    assert dict(metric.stats())["TotalNumber"] == 0


@pytest.mark.parametrize(
    "name", ["lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"]
)
def test_adagrad_refuses_settings_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name}=-1 must be at least 0"):
        FusedAdagrad(make_parameters(), **{name: -1})
