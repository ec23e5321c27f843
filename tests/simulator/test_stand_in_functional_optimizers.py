"""Optimizers that are given their gradients."""

from __future__ import annotations

import importlib

import pytest
import torch
from habana_frameworks.torch.hpex.optimizers import FusedAdamW, distributed

from tests.simulator.descent import gradients, make_parameters, take_steps


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_functional_adamw_equals_the_optimizer(weight_decay):
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": weight_decay}
    expected = make_parameters()
    take_steps(FusedAdamW(expected, **settings), expected)
    parameters = make_parameters()
    optimizer = distributed.FusedAdamW(parameters, **settings)
    for values in gradients():
        optimizer.step([value.to("hpu") for value in values])
    for ours, theirs in zip(parameters, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_functional_adamw_leaves_out_parameters_without_gradients():
    parameters = make_parameters(dtype=torch.bfloat16)
    before = [p.detach().clone() for p in parameters]
    optimizer = distributed.FusedAdamW(parameters, lr=1.0, moments_dtype=torch.float32)
    optimizer.step([None, torch.ones_like(parameters[1]), None, None])
    changed = [not torch.equal(p, b) for p, b in zip(parameters, before, strict=True)]
    assert changed == [False, True, False, False]
    assert optimizer.state[parameters[1]]["exp_avg"].dtype == torch.float32
    optimizer.step([None] * 4)


def test_functional_adamw_refuses_what_it_cannot():
    parameters = make_parameters()
    with pytest.raises(ValueError, match="Got 1 gradients for 4 parameters"):
        distributed.FusedAdamW(parameters).step([None])
    with pytest.raises(ValueError, match="FusedAdamW got no parameters"):
        distributed.FusedAdamW([])
    distributed.FusedAdamW([], _allow_empty_param_list=True).step([])
    with pytest.raises(ValueError, match=r"weight_decay=-1 must be at least 0"):
        distributed.FusedAdamW(parameters, weight_decay=-1)
    with pytest.raises(RuntimeError, match=r"has no step_param\(\). Call step\(gradients\)"):
        distributed.FusedAdamW(parameters).step_param(parameters[0], None)
    with pytest.raises(NotImplementedError, match=r"moments_dtype=torch.float8_e5m2"):
        distributed.FusedAdamW(parameters, moments_dtype=torch.float8_e5m2)


@pytest.mark.parametrize("name", ["SparseSGD", "SparseAdagrad"])
def test_sparse_optimizers_exist_and_refuse_with_the_reason(name):
    module = importlib.import_module(f"habana_frameworks.torch.hpex.optimizers.{name}")
    with pytest.raises(NotImplementedError, match="with an embedding of sparse=False"):
        module.forward(torch.ones(1))
