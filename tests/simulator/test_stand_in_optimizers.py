"""The fused optimizers against torch and against the published formulas, in float64 on the CPU."""

from __future__ import annotations

import textwrap
from functools import partial

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedAdagrad, FusedAdamW, FusedLamb, FusedSGD

from tests.helpers.forked import fork_python
from tests.simulator.descent import gradients, make_parameters, take_steps


def _adamw_reference(lr, betas, eps, weight_decay, bias_correction=True):
    parameters = make_parameters("cpu", torch.float64)
    m = [torch.zeros_like(p) for p in parameters]
    v = [torch.zeros_like(p) for p in parameters]
    with torch.no_grad():
        for t, values in enumerate(gradients(), start=1):
            size = lr
            if bias_correction:
                size *= (1 - betas[1] ** t) ** 0.5 / (1 - betas[0] ** t)
            for i, (p, g) in enumerate(zip(parameters, values, strict=True)):
                g = g.double()
                m[i] = betas[0] * m[i] + (1 - betas[0]) * g
                v[i] = betas[1] * v[i] + (1 - betas[1]) * g * g
                p.mul_(1 - weight_decay * lr).sub_(size * m[i] / (v[i].sqrt() + eps))
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_adamw_follows_its_formula(weight_decay, bias_correction, eps):
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": eps, "weight_decay": weight_decay}
    parameters = make_parameters()
    optimizer = FusedAdamW(parameters, bias_correction=bias_correction, **settings)
    expected = _adamw_reference(bias_correction=bias_correction, **settings)
    # fp32 against float64: 6 steps of 1e-2.
    torch.testing.assert_close(take_steps(optimizer, parameters), expected, rtol=1e-5, atol=1e-6)


def test_adamw_agrees_with_torch_where_eps_is_small():
    parameters, reference = make_parameters(), make_parameters("cpu")
    settings = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}
    ours = take_steps(FusedAdamW(parameters, **settings), parameters)
    theirs = take_steps(torch.optim.AdamW(reference, **settings), reference)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-7)


def test_adamw_default_eps_stays_near_torch():
    parameters, reference = make_parameters(), make_parameters("cpu")
    ours = take_steps(FusedAdamW(parameters), parameters)
    theirs = take_steps(torch.optim.AdamW(reference, eps=1e-6, weight_decay=0), reference)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=7e-5)


def test_adamw_counts_steps_in_the_group():
    parameters = make_parameters()
    optimizer = FusedAdamW([{"params": parameters[:1]}, {"params": parameters[1:]}])
    take_steps(optimizer, parameters, stop=2)
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]
    parameters[0].grad = None
    optimizer.step()
    assert [group["step"] for group in optimizer.param_groups] == [2, 3]


def test_adamw_resumes_from_a_state_dict():
    whole = make_parameters()
    expected = take_steps(FusedAdamW(whole, weight_decay=0.1), whole, stop=4)
    parameters = make_parameters()
    first = FusedAdamW(parameters, weight_decay=0.1)
    second = FusedAdamW(parameters, weight_decay=0.1)
    take_steps(first, parameters, stop=2)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(take_steps(second, parameters, start=2, stop=4), expected)


def test_adamw_keeps_moments_in_another_dtype():
    parameters = make_parameters(dtype=torch.bfloat16)
    optimizer = FusedAdamW(parameters, moments_dtype=torch.float32)
    take_steps(optimizer, parameters, stop=1)
    state = optimizer.state[parameters[0]]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert parameters[0].dtype == torch.bfloat16
    with pytest.raises(NotImplementedError, match=r"moments_dtype=torch.float8_e4m3fn"):
        FusedAdamW(make_parameters(), moments_dtype=torch.float8_e4m3fn)


def test_adamw_returns_the_closures_loss_and_does_not_wait_for_the_device():
    parameters = make_parameters()
    optimizer = FusedAdamW(parameters, lr=0.1)
    loss = torch.ones((), device="hpu")

    def closure():
        optimizer.zero_grad()
        sum(p.sum() for p in parameters).backward()
        return loss

    before = parameters[0].detach().clone()
    with torch.hpu.metric_localcontext("host_sync") as metric:
        assert optimizer.step(closure) is loss
    assert dict(metric.stats())["TotalNumber"] == 0
    assert not torch.equal(before, parameters[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, r"lr=-1.0 must be at least 0\."),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]=1.0 must be at least 0 and under 1"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\]=-0.1 must be"),
        ({"eps": -1e-8}, "eps=-1e-08 must be"),
    ],
)
def test_adamw_refuses_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        FusedAdamW(make_parameters(), **settings)


@pytest.mark.parametrize(
    "optimizer", [FusedAdamW, FusedLamb, FusedAdagrad, partial(FusedSGD, lr=0.1)], ids=str
)
def test_empty_groups_are_refused(optimizer):
    groups = [{"params": make_parameters()}, {"params": []}]
    with pytest.raises(ValueError, match=r"Fused\w+: parameter group 1 of 2 is empty"):
        optimizer(groups)


@pytest.mark.parametrize("optimizer", [FusedAdamW, FusedLamb, partial(FusedSGD, lr=0.1)], ids=str)
def test_sparse_gradients_are_refused(optimizer):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True)
    with pytest.raises(RuntimeError, match=r"Fused\w+ cannot use sparse gradients"):
        optimizer([parameter]).step()


def test_operators_refuse_lists_that_do_not_fit():
    weights = [torch.ones(2, device="hpu")]
    scalar = torch.ones(1, device="hpu")
    adamw, rest = torch.ops.hpu.optimizer_adamw, (scalar, 0.9, 0.99, 1e-6, scalar, False)
    with pytest.raises(RuntimeError, match="optimizer_adamw got no tensors"):
        adamw([], [], [], [], *rest)
    with pytest.raises(RuntimeError, match=r"lists of one length, got .*'gradient_vec': 2"):
        adamw(weights * 2, weights, weights, weights, *rest)
    with pytest.raises(NotImplementedError, match="with moments in fp8"):
        adamw(weights, weights, weights, weights, *rest, [scalar], [scalar])


def test_lazy_mode_gives_the_same_weights_and_compiles_a_fixed_number_of_graphs(capsys):
    source = """
        import torch
        from habana_frameworks.torch.hpex.optimizers import FusedAdamW, FusedLamb
        from habana_frameworks.torch.hpu.metrics import metric_global
        torch.manual_seed(0)
        for kind in (FusedAdamW, FusedLamb):
            p = torch.nn.Parameter(torch.randn(4, 4).to("hpu"))
            optimizer = kind([p], lr=0.1, weight_decay=0.1)
            for step in range(6):
                p.grad = torch.randn(4, 4).to("hpu")
                optimizer.step()
                if step == 2:
                    before = dict(metric_global("graph_compilation").stats())["TotalNumber"]
            after = dict(metric_global("graph_compilation").stats())["TotalNumber"]
            print(after - before, p.sum().item())
        """
    exec(textwrap.dedent(source), {})
    eager = capsys.readouterr().out.split()
    lazy = fork_python(source, env={"PT_HPU_LAZY_MODE": "1"}).stdout.split()
    assert eager == lazy
    assert eager[0::2] == ["0", "0"]


def test_a_step_of_adamw_launches_the_same_for_any_number_of_weights():
    counts = []
    for num_weights in (1, 7):
        weights = [torch.ones(2, device="hpu", requires_grad=True) for _ in range(num_weights)]
        optimizer = FusedAdamW(weights, lr=0.1)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        with torch.hpu.metric_localcontext("launch") as metric:
            optimizer.step()
        counts.append(dict(metric.stats())["TotalNumber"])
    assert counts[0] == counts[1] <= 3
