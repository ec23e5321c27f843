"""Adam's kernel steps as torch does on the CPU, by few launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import adam

from lightning_gaudi import vendor
from lightning_gaudi._patches.optimizers import step_adam_by_kernel
from lightning_gaudi.compilation.compiler import stepping_at_once
from lightning_gaudi.simulator import host_syncs, launches

SHAPES = [(3, 5), (7,), (2, 2, 2), ()]
NUM_STEPS = 3


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(adam, "_multi_tensor_adam", adam._multi_tensor_adam)
    step_adam_by_kernel(True)
    yield
    step_adam_by_kernel(False)


def _stepped(device: str, kind: Any, dtype: torch.dtype, **settings: Any) -> tuple[Any, list[int]]:
    """Weights after some steps, in which one of them begins late; and each step's launches."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    weights = [nn.Parameter(value.to(device)) for value in values]
    optimizer, counts = kind(weights, lr=0.1, **settings), []
    for step in range(NUM_STEPS):
        for index, weight in enumerate(weights):
            gradient = torch.randn(weight.shape, generator=generator).to(dtype)
            weight.grad = gradient.to(device) if step or index else None
        before = launches()
        with stepping_at_once(optimizer):
            optimizer.step()
        counts.append(launches() - before)
    steps = [optimizer.state[weight]["step"] for weight in weights]
    assert [each.item() for each in steps] == [NUM_STEPS - 1, *[NUM_STEPS] * (len(SHAPES) - 1)]
    assert all(each.is_cpu for each in steps)
    return [weight.detach().cpu() for weight in weights], counts


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
        (torch.optim.AdamW, {"betas": (0.8, 0.9), "maximize": True}),
    ],
)
def test_it_steps_as_the_cpu_does_by_a_launch_for_each_count(
    kind: Any, settings: dict[str, Any]
) -> None:
    before = sum(host_syncs().values())
    ours, counts = _stepped("hpu", kind, torch.float32, **settings)
    # Reading the weights is what waits: nothing in a step does.
    assert sum(host_syncs().values()) - before == len(SHAPES)
    expected, _ = _stepped("cpu", kind, torch.float32, **settings)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    # The weight that began late is stepped by itself, with the count that the others had before.
    assert counts[-1] == 3


def test_narrow_weights_and_older_releases_are_stepped_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, counts = _stepped("hpu", torch.optim.AdamW, torch.bfloat16)
    monkeypatch.setattr(vendor, "has_adam_kernel", lambda: False)
    expected, _ = _stepped("hpu", torch.optim.AdamW, torch.bfloat16)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    _, without = _stepped("hpu", torch.optim.AdamW, torch.float32)
    assert min(counts[-1], without[-1]) >= 7


def test_where_weights_are_whole_they_stay_the_cpu_s_to_the_bit() -> None:
    step_adam_by_kernel(False)
    ours, _ = _stepped("hpu", torch.optim.AdamW, torch.float32, weight_decay=0.1)
    expected, _ = _stepped("cpu", torch.optim.AdamW, torch.float32, weight_decay=0.1, foreach=True)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
