"""The fused optimizers against torch and against the published formulas, in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedAdamW, FusedLamb

from tests.helpers.process import run_python

SHAPES = ((4, 3), (5,), (2, 2, 2), ())
NUM_STEPS = 6


def _parameters(device="hpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [torch.nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def _train(optimizer, parameters, num_steps=NUM_STEPS, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator) * scale
            parameter.grad = gradient.to(parameter.device, parameter.dtype)
        optimizer.step()
    return [parameter.detach().cpu().double() for parameter in parameters]


def _adamw_reference(lr, betas, eps, weight_decay, bias_correction=True):
    parameters = _parameters("cpu", torch.float64)
    generator = torch.Generator().manual_seed(1)
    m = [torch.zeros_like(p) for p in parameters]
    v = [torch.zeros_like(p) for p in parameters]
    with torch.no_grad():
        for t in range(1, NUM_STEPS + 1):
            size = lr
            if bias_correction:
                size *= (1 - betas[1] ** t) ** 0.5 / (1 - betas[0] ** t)
            for i, p in enumerate(parameters):
                g = torch.randn(p.shape, generator=generator).double()
                m[i] = betas[0] * m[i] + (1 - betas[0]) * g
                v[i] = betas[1] * v[i] + (1 - betas[1]) * g * g
                p.mul_(1 - weight_decay * lr).sub_(size * m[i] / (v[i].sqrt() + eps))
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_adamw_follows_its_formula(weight_decay, bias_correction, eps):
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": eps, "weight_decay": weight_decay}
    parameters = _parameters()
    optimizer = FusedAdamW(parameters, bias_correction=bias_correction, **settings)
    expected = _adamw_reference(bias_correction=bias_correction, **settings)
    # fp32 against float64: 6 steps of 1e-2.
    torch.testing.assert_close(_train(optimizer, parameters), expected, rtol=1e-5, atol=1e-6)


def test_adamw_agrees_with_torch_where_eps_is_small():
    parameters, reference = _parameters(), _parameters("cpu")
    settings = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}
    ours = _train(FusedAdamW(parameters, **settings), parameters)
    theirs = _train(torch.optim.AdamW(reference, **settings), reference)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-7)


def test_adamw_default_eps_stays_near_torch():
    parameters, reference = _parameters(), _parameters("cpu")
    ours = _train(FusedAdamW(parameters), parameters)
    theirs = _train(torch.optim.AdamW(reference, eps=1e-6, weight_decay=0), reference)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=7e-5)


def test_adamw_counts_steps_in_the_group():
    parameters = _parameters()
    optimizer = FusedAdamW([{"params": parameters[:1]}, {"params": parameters[1:]}])
    _train(optimizer, parameters, num_steps=2)
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]
    parameters[0].grad = None
    optimizer.step()
    assert [group["step"] for group in optimizer.param_groups] == [2, 3]


def test_adamw_resumes_from_a_state_dict():
    whole = _parameters()
    expected = _train(FusedAdamW(whole, weight_decay=0.1), whole, num_steps=4)
    parameters = _parameters()
    first = FusedAdamW(parameters, weight_decay=0.1)
    second = FusedAdamW(parameters, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for optimizer in (first, first, second, second):
        if optimizer is second and "step" not in second.param_groups[0]:
            second.load_state_dict(first.state_dict())
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=generator).to("hpu")
        optimizer.step()
    torch.testing.assert_close([p.detach().cpu().double() for p in parameters], expected)


def test_adamw_keeps_moments_in_another_dtype():
    parameters = _parameters(dtype=torch.bfloat16)
    optimizer = FusedAdamW(parameters, moments_dtype=torch.float32)
    _train(optimizer, parameters, num_steps=1)
    state = optimizer.state[parameters[0]]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert parameters[0].dtype == torch.bfloat16
    with pytest.raises(NotImplementedError, match=r"moments_dtype=torch.float8_e4m3fn"):
        FusedAdamW(_parameters(), moments_dtype=torch.float8_e4m3fn)


def test_adamw_returns_the_closures_loss_and_does_not_wait_for_the_device():
    parameters = _parameters()
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
        FusedAdamW(_parameters(), **settings)


@pytest.mark.parametrize("optimizer", [FusedAdamW, FusedLamb])
def test_empty_groups_are_refused(optimizer):
    groups = [{"params": _parameters()}, {"params": []}]
    with pytest.raises(ValueError, match=r"Fused\w+: parameter group 1 of 2 is empty"):
        optimizer(groups)


@pytest.mark.parametrize("optimizer", [FusedAdamW, FusedLamb])
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


def _lamb_reference(lr, weight_decay, max_grad_norm, use_lamb, grad_averaging, bias_correction):
    parameters = _parameters("cpu", torch.float64)
    generator = torch.Generator().manual_seed(1)
    b1, b2, eps = 0.9, 0.999, 1e-6
    m = [torch.zeros_like(p) for p in parameters]
    v = [torch.zeros_like(p) for p in parameters]
    with torch.no_grad():
        for t in range(1, NUM_STEPS + 1):
            gradients = [torch.randn(p.shape, generator=generator).double() for p in parameters]
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            divisor = 1.0 if max_grad_norm is None else max(1.0, float(norm) / max_grad_norm)
            c1, c2 = (1 - b1**t, 1 - b2**t) if bias_correction else (1.0, 1.0)
            for i, p in enumerate(parameters):
                g = gradients[i] / divisor
                m[i] = b1 * m[i] + (1 - b1 if grad_averaging else 1.0) * g
                v[i] = b2 * v[i] + (1 - b2) * g * g
                step = (m[i] / c1) / ((v[i] / c2).sqrt() + eps) + weight_decay * p
                is_scaled = weight_decay != 0 or use_lamb
                p.sub_(lr * (p.norm() / step.norm() if is_scaled else 1.0) * step)
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("changes", [
    {}, {"weight_decay": 0.0}, {"weight_decay": 0.0, "use_lamb": True}, {"max_grad_norm": None},
    {"grad_averaging": False}, {"bias_correction": False},
], ids=str)  # fmt: skip
def test_lamb_follows_its_formula(changes):
    settings = {
        "lr": 1e-2,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "use_lamb": False,
        "grad_averaging": True,
        "bias_correction": True,
    } | changes
    parameters = _parameters()
    ours = _train(FusedLamb(parameters, **settings), parameters)
    torch.testing.assert_close(ours, _lamb_reference(**settings), rtol=1e-5, atol=2e-6)


def test_lamb_takes_ratio_1_for_weights_of_zero():
    parameter = torch.nn.Parameter(torch.zeros(3, device="hpu"))
    parameter.grad = torch.ones(3, device="hpu")
    FusedLamb([parameter], lr=0.1, max_grad_norm=None).step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((3,), -0.1), atol=1e-6, rtol=0)


def test_lamb_zero_grad_takes_no_argument():
    parameters = _parameters()
    _train(optimizer := FusedLamb(parameters), parameters, num_steps=1)
    with pytest.raises(TypeError, match="set_to_none"):
        optimizer.zero_grad(set_to_none=True)
    optimizer.zero_grad()
    assert all(p.grad is None for p in parameters)
    optimizer = FusedLamb(parameters, set_grad_none=False)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.zero_grad()
    assert parameters[0].grad.abs().sum() == 0


def test_lamb_refuses_amsgrad_and_groups_without_gradients():
    with pytest.raises(RuntimeError, match="got amsgrad=True"):
        FusedLamb(_parameters(), amsgrad=True)
    parameters = _parameters()
    optimizer = FusedLamb([{"params": parameters[:1]}, {"params": parameters[1:]}])
    parameters[0].grad = torch.ones_like(parameters[0])
    with pytest.raises(RuntimeError, match=r"optimizer_lamb_phase1 got no tensors .* leave it out"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="FusedLamb: no parameter has a gradient"):
        FusedLamb(_parameters()).step()


def test_lazy_mode_gives_the_same_weights_and_compiles_a_fixed_number_of_graphs():
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
    eager = run_python(source).stdout.split()
    lazy = run_python(source, env={"PT_HPU_LAZY_MODE": "1"}).stdout.split()
    assert eager == lazy
    assert eager[0::2] == ["0", "0"]
