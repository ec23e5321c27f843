"""The scaler for the HPU does what torch's does on the CPU, without waiting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from lightning_gaudi._core import vendor
from lightning_gaudi._core.precision.grad_scaler import HPUGradScaler
from tests.helpers.forked import fork_python

SETTINGS = {"init_scale": 2.0**10, "growth_interval": 2}
OVERFLOWS = [False, False, True, False, True, True, False, False, False, False, False]


class Loop:
    """Steps of one weight, some with an infinite gradient."""

    def __init__(self, scaler: GradScaler, device: str) -> None:
        self.scaler = scaler
        self.weight = nn.Parameter(torch.ones(3, device=device))
        self.unused = nn.Parameter(torch.ones(2, device=device))
        self.optimizer = torch.optim.SGD([self.weight, self.unused], lr=0.1)

    def step(self, has_overflow: bool) -> Tensor:
        factor = math.inf if has_overflow else 0.5
        self.optimizer.zero_grad()
        self.scaler.scale((self.weight * factor).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.weight.detach().cpu()


def check() -> None:
    """Hold our scaler to torch's on the CPU."""
    ours, theirs = (
        Loop(HPUGradScaler(**SETTINGS), "hpu"),
        Loop(GradScaler("cpu", **SETTINGS), "cpu"),
    )
    for has_overflow in OVERFLOWS:
        torch.testing.assert_close(ours.step(has_overflow), theirs.step(has_overflow))
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()


def test_scale_and_steps_are_torchs() -> None:
    check()


def test_scale_and_steps_are_torchs_in_lazy_mode() -> None:
    fork_python(
        "from tests.core.test_grad_scaler import check; check()", env={"PT_HPU_LAZY_MODE": "1"}
    )


def test_scale_does_not_grow_beyond_float32() -> None:
    loop = Loop(HPUGradScaler(init_scale=2.0**127, growth_interval=1), "hpu")
    loop.weight.data.zero_()
    loop.optimizer.zero_grad()
    loop.weight.grad = torch.zeros_like(loop.weight)
    loop.scaler.scale(loop.weight.sum())
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
    assert loop.scaler.get_scale() == 2.0**127


def test_a_step_waits_once_and_computes_nothing_on_the_cpu() -> None:
    loop = Loop(HPUGradScaler(), "hpu")
    names = ("host_sync", "cpu_fallback")
    before = [vendor.metric(name)["TotalNumber"] for name in names]  # type: ignore[index]
    loop.optimizer.zero_grad()
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
    after = [vendor.metric(name)["TotalNumber"] for name in names]  # type: ignore[index]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0]


def test_gradients_are_unscaled_once_and_not_in_float16() -> None:
    loop = Loop(HPUGradScaler(), "hpu")
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.unscale_(loop.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        loop.scaler.unscale_(loop.optimizer)
    half = Loop(HPUGradScaler(), "hpu")
    half.weight.data = half.weight.data.half()
    half.scaler.scale(half.weight.sum()).backward()
    with pytest.raises(ValueError, match=r"float16 cannot be unscaled.*precision='16-mixed'"):
        half.scaler.unscale_(half.optimizer)


def test_a_new_scale_and_a_disabled_scaler_are_torchs() -> None:
    loop = Loop(HPUGradScaler(), "hpu")
    loop.step(False)
    loop.scaler.update(8.0)
    assert loop.scaler.get_scale() == 8.0
    disabled = HPUGradScaler(enabled=False)
    disabled.update()
    assert disabled.scale(loop.weight) is loop.weight
