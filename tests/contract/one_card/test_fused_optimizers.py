"""The vendor's fused optimizers against their formulas in float64 on the CPU.

2e-5 is the tolerance of the vendor's own test of FusedAdamW in fp32 (bridge 1.19,
tests/pytest_working/any_mode/test_fused_adamw.py).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi._core import vendor

SHAPES = ((4, 3), (5,), (2, 2, 2))
NUM_STEPS = 5
BETAS = (0.8, 0.95)
EPS = 1e-6
LR = 1e-2


def _named(name: str) -> Any:
    """An optimizer that the plugin does not use, and that so has no place in `vendor`."""
    return getattr(importlib.import_module("habana_frameworks.torch.hpex.optimizers"), name)


def _parameters(device: str, dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in SHAPES
    ]


def _gradients() -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_STEPS):
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


def _train(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    for gradients in _gradients():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.device)
        optimizer.step()
        vendor.mark_step()
    return [parameter.detach().cpu().double() for parameter in parameters]


def _averages(*, is_clipped: bool) -> Iterator[tuple[int, list[Tensor], list[Tensor]]]:
    """Step number and both averages of the gradients, for the formulas; clipped to a norm of 1."""
    m = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    v = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for t, gradients in enumerate(_gradients(), start=1):
        doubles = [gradient.double() for gradient in gradients]
        if is_clipped:
            norm = torch.stack([g.pow(2).sum() for g in doubles]).sum().sqrt()
            doubles = [g / norm.clamp(min=1.0) for g in doubles]
        m = [BETAS[0] * a + (1 - BETAS[0]) * g for a, g in zip(m, doubles, strict=True)]
        v = [BETAS[1] * a + (1 - BETAS[1]) * g * g for a, g in zip(v, doubles, strict=True)]
        yield t, m, v


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_follows_its_formula(weight_decay: float) -> None:
    expected = [p.detach() for p in _parameters("cpu", torch.float64)]
    for t, m, v in _averages(is_clipped=False):
        size = LR * (1 - BETAS[1] ** t) ** 0.5 / (1 - BETAS[0] ** t)
        for i, weight in enumerate(expected):
            weight.mul_(1 - weight_decay * LR).sub_(size * m[i] / (v[i].sqrt() + EPS))
    parameters = _parameters("hpu", torch.float32)
    optimizer = vendor.fused_adamw()(
        parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=weight_decay
    )
    torch.testing.assert_close(_train(optimizer, parameters), expected, rtol=2e-5, atol=2e-5)


def test_adamw_counts_its_steps_in_the_group() -> None:
    parameters = _parameters("hpu", torch.float32)
    optimizer = vendor.fused_adamw()(parameters)
    _train(optimizer, parameters)
    assert optimizer.param_groups[0]["step"] == NUM_STEPS


def test_adamw_state_resumes() -> None:
    whole, first, second = (_parameters("hpu", torch.float32) for _ in range(3))
    expected = _train(vendor.fused_adamw()(whole, lr=LR), whole)
    before = vendor.fused_adamw()(first, lr=LR)
    after = vendor.fused_adamw()(second, lr=LR)
    for step, gradients in enumerate(_gradients()):
        parameters, optimizer = (first, before) if step < 2 else (second, after)
        if step == 2:
            after.load_state_dict(before.state_dict())
            for new, old in zip(second, first, strict=True):
                new.data.copy_(old.data)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to("hpu")
        optimizer.step()
        vendor.mark_step()
    resumed = [parameter.detach().cpu().double() for parameter in second]
    torch.testing.assert_close(resumed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_clips_and_follows_its_formula(weight_decay: float) -> None:
    """You et al., "Large Batch Optimization for Deep Learning", 2019 (arXiv 1904.00962).

    Without weight decay a weight takes no trust ratio, unless `use_lamb` says so.
    """
    expected = [p.detach() for p in _parameters("cpu", torch.float64)]
    for t, m, v in _averages(is_clipped=True):
        for i, weight in enumerate(expected):
            m_hat, v_hat = m[i] / (1 - BETAS[0] ** t), v[i] / (1 - BETAS[1] ** t)
            direction = m_hat / (v_hat.sqrt() + EPS) + weight_decay * weight
            ratio = weight.norm() / direction.norm() if weight_decay else 1.0
            weight.sub_(LR * ratio * direction)
    parameters = _parameters("hpu", torch.float32)
    optimizer = _named("FusedLamb")(
        parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=weight_decay
    )
    torch.testing.assert_close(_train(optimizer, parameters), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    ids=["plain", "momentum", "nesterov"],
)
def test_sgd_is_torchs(settings: dict[str, Any]) -> None:
    """1e-3 is the tolerance of the vendor's own test (bridge 1.19, eager/fused_ops/test_sgd.py)."""
    weights, parameters = _parameters("cpu", torch.float64), _parameters("hpu", torch.float32)
    settings = {"lr": LR, "weight_decay": 0.1} | settings
    expected = torch.optim.SGD(weights, **settings)
    for gradients in _gradients():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.double()
        expected.step()
    ours = _train(_named("FusedSGD")(parameters, **settings), parameters)
    torch.testing.assert_close(ours, [w.detach() for w in weights], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("FusedAdagrad", "params lr lr_decay weight_decay initial_accumulator_value eps"),
        ("FusedLars", "optimizer skip_mask eeta eps"),
        ("FusedResourceApplyMomentum", "params lr momentum weight_decay nesterov"),
        ("FusedSGD", "params lr momentum weight_decay dampening nesterov"),
    ],
)
def test_optimizer_takes_the_vendors_arguments(name: str, parameters: str) -> None:
    assert list(inspect.signature(_named(name)).parameters) == parameters.split()
