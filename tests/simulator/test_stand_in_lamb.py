"""FusedLamb against the published formula, in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedLamb

from tests.simulator.descent import gradients, make_parameters, take_steps


def _lamb_reference(lr, weight_decay, max_grad_norm, use_lamb, grad_averaging, bias_correction):
    parameters = make_parameters("cpu", torch.float64)
    b1, b2, eps = 0.9, 0.999, 1e-6
    m = [torch.zeros_like(p) for p in parameters]
    v = [torch.zeros_like(p) for p in parameters]
    with torch.no_grad():
        for t, values in enumerate(gradients(), start=1):
            norm = torch.cat([g.double().flatten() for g in values]).norm()
            divisor = 1.0 if max_grad_norm is None else max(1.0, float(norm) / max_grad_norm)
            c1, c2 = (1 - b1**t, 1 - b2**t) if bias_correction else (1.0, 1.0)
            for i, p in enumerate(parameters):
                g = values[i].double() / divisor
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
    parameters = make_parameters()
    ours = take_steps(FusedLamb(parameters, **settings), parameters)
    torch.testing.assert_close(ours, _lamb_reference(**settings), rtol=1e-5, atol=2e-6)


def test_lamb_takes_ratio_1_for_weights_of_zero():
    parameter = torch.nn.Parameter(torch.zeros(3, device="hpu"))
    parameter.grad = torch.ones(3, device="hpu")
    FusedLamb([parameter], lr=0.1, max_grad_norm=None).step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((3,), -0.1), atol=1e-6, rtol=0)


def test_lamb_zero_grad_takes_no_argument():
    parameters = make_parameters()
    take_steps(optimizer := FusedLamb(parameters), parameters, stop=1)
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
        FusedLamb(make_parameters(), amsgrad=True)
    parameters = make_parameters()
    optimizer = FusedLamb([{"params": parameters[:1]}, {"params": parameters[1:]}])
    parameters[0].grad = torch.ones_like(parameters[0])
    with pytest.raises(RuntimeError, match=r"optimizer_lamb_phase1 got no tensors .* leave it out"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="FusedLamb: no parameter has a gradient"):
        FusedLamb(make_parameters()).step()
