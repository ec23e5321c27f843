import copy

import pytest
import torch
from torch import nn

from recipes.common.optimizers import Lamb, make_optimizer, make_schedule, parameter_groups


def _model(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = 5) -> None:
    """Steps whose gradients are larger than the limit of LAMB at first."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        inputs = torch.randn(4, 6, generator=generator).to(device)
        optimizer.zero_grad()
        (30.0 * model(inputs).square().mean()).backward()
        optimizer.step()


def _make(name: str, model: nn.Module, **settings) -> torch.optim.Optimizer:
    settings = {"weight_decay": 0.1, **settings}
    return make_optimizer(name, model, learning_rate=0.01, **settings)


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
def test_lamb_is_the_vendors_lamb(max_grad_norm):
    ours, theirs = _model(), _model("hpu")
    lamb = _make("lamb", ours, max_grad_norm=max_grad_norm)
    fused = _make("fused_lamb", theirs, max_grad_norm=max_grad_norm)
    _train(ours, lamb)
    _train(theirs, fused)
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, other.cpu(), rtol=0, atol=1e-6)
    assert [g["step"] for g in lamb.param_groups] == [g["step"] for g in fused.param_groups]


def test_the_state_of_lamb_goes_on_in_the_vendors_lamb():
    ours, theirs = _model(), _model("hpu")
    lamb, fused = _make("lamb", ours), _make("fused_lamb", theirs)
    _train(ours, lamb)
    theirs.load_state_dict(ours.state_dict())
    fused.load_state_dict(copy.deepcopy(lamb.state_dict()))
    _train(ours, lamb)
    _train(theirs, fused)
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, other.cpu(), rtol=0, atol=1e-6)


def test_lamb_scales_steps_by_the_trust_ratio_where_weights_decay():
    weight, bias = nn.Parameter(torch.full((2, 2), 3.0)), nn.Parameter(torch.full((2,), 3.0))
    groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = Lamb(groups, lr=0.1, eps=0.0, max_grad_norm=None)
    weight.grad, bias.grad = torch.ones(2, 2), torch.ones(2)
    optimizer.step()
    # The first direction of Adam is 1 everywhere; with decay it has the weight's direction too,
    # and takes the weight's norm: a step of lr times the weight itself.
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 2.7))
    torch.testing.assert_close(bias.detach(), torch.full((2,), 2.9))


def test_adamw_on_hpu_and_its_torch_equal_agree():
    ours, theirs = _model(), _model("hpu")
    _train(ours, _make("adamw", ours))
    _train(theirs, _make("fused_adamw", theirs))
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        # The vendor's adds epsilon before the bias correction.
        torch.testing.assert_close(parameter, other.cpu(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("device", "expected"), [("hpu", "FusedAdamW"), ("cpu", "AdamW")])
def test_auto_takes_the_kernel_where_there_is_one(device, expected):
    assert type(_make("auto", _model(device))).__name__ == expected


@pytest.mark.parametrize(
    ("before", "after"), [("adamw", "fused_adamw"), ("fused_adamw", "adamw"), ("auto", "adamw")]
)
def test_either_adamw_goes_on_with_what_the_other_saved(before, after):
    reference, model = _model("hpu"), _model("hpu")
    uninterrupted = _make(after, reference)
    _train(reference, uninterrupted)
    _train(reference, uninterrupted)
    first = _make(before, model)
    _train(model, first)
    saved = copy.deepcopy(first.state_dict())
    second = _make(after, model)
    second.load_state_dict(saved)
    _train(model, second)
    for parameter, other in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-4)
    # A state of its own kind is what torch loads.
    assert second.state_dict().keys() == uninterrupted.state_dict().keys()
    for group, other in zip(second.param_groups, uninterrupted.param_groups, strict=True):
        assert {**group, "params": None} == {**other, "params": None}


def test_another_number_of_groups_is_refused_by_torch():
    model = _model()
    saved = _make("adamw", model)
    _train(model, saved)
    other = _model("hpu")
    other[0].weight.requires_grad_(False)
    other[2].weight.requires_grad_(False)
    optimizer = _make("auto", other)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("name", ["fused_adamw", "fused_lamb"])
def test_a_kernel_of_the_vendor_is_refused_on_another_device(name):
    with pytest.raises(ValueError, match=rf"model.optimizer={name} .* is on cpu") as error:
        _make(name, _model())
    assert f"Use model.optimizer={name.removeprefix('fused_')}" in str(error.value)


def test_biases_and_norms_do_not_decay_and_no_group_is_empty():
    model = _model()
    decaying, kept = parameter_groups(model, 0.1)
    assert [p.shape for p in decaying["params"]] == [(8, 6), (2, 8)]
    assert (decaying["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(kept["params"]) == 4
    model[0].weight.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    assert len(parameter_groups(model, 0.1)) == 1


def _rates(name: str, num_steps: float, warmup: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scale = make_schedule(name, optimizer, num_steps, warmup).lr_lambdas[0]
    return [round(scale(step), 3) for step in range(5)]


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial", "constant"])
def test_a_run_without_a_step_has_a_schedule(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert 0.0 <= make_schedule(name, optimizer, 0, 0.1).get_last_lr()[0] <= 1.0


def test_schedules_go_up_and_down():
    assert _rates("linear", 4, 2) == [0.5, 1.0, 1.0, 0.5, 0.0]
    assert _rates("linear", 4, 0.5) == [0.5, 1.0, 1.0, 0.5, 0.0]
    assert _rates("constant", float("inf"), 2) == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert _rates("polynomial", 4, 0.5) == [0.5, 0.707, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linear", float("inf"), 0), "model.schedule=linear .* needs the length of the run"),
        (("constant", float("inf"), 0.1), "model.warmup_steps=0.1 needs the length"),
        (("linear", 10, 11), "model.warmup_steps=11 does not lie within the 10 steps"),
        (("linear", 10, -1), "model.warmup_steps=-1 does not lie within"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        _rates(*arguments)


@pytest.mark.parametrize("name", ["adamw", "fused_adamw", "lamb", "fused_lamb"])
def test_epsilon_is_that_of_the_setting(name):
    model = _model("hpu" if name.startswith("fused") else "cpu")
    for settings, expected in (({}, 1e-6), ({"epsilon": 1e-8}, 1e-8)):
        groups = _make(name, model, **settings).param_groups
        assert {group["eps"] for group in groups} == {expected}
