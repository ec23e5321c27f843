"""Training with the vendor's fused optimizers, in the test's process and in one of lazy mode.

`python -m tests.simulator.descent FILE` runs every case on the card and saves what came of it.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gaudi import vendor

SHAPES = ((4, 3), (5,), (2, 2, 2), ())
GROUPS = ({"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.05, "weight_decay": 0.1})
"""Settings of the first two and of the last two parameters."""
NUM_STEPS = 6
FEWER = 3
"""From this step on the learning rates are halved."""

Groups = list[dict[str, Any]]
Make = Callable[[Groups], torch.optim.Optimizer]


def make_parameters(device: str = "hpu", dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def gradients() -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_STEPS):
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


def grouped(tensors: list[nn.Parameter]) -> Groups:
    first, last = GROUPS
    return [{"params": tensors[:2], **first}, {"params": tensors[2:], **last}]


def set_gradients(tensors: list[nn.Parameter], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.grad = value.to(tensor.device, tensor.dtype)


def values_of(tensors: list[nn.Parameter]) -> list[Tensor]:
    """In fp64 on the CPU."""
    return [tensor.detach().cpu().double() for tensor in tensors]


def take_steps(
    optimizer: torch.optim.Optimizer,
    tensors: list[nn.Parameter],
    start: int = 0,
    stop: int = NUM_STEPS,
) -> list[Tensor]:
    """Step with the gradients of steps `start` to `stop`; the weights after that."""
    for values in itertools.islice(gradients(), start, stop):
        set_gradients(tensors, values)
        optimizer.step()
    return values_of(tensors)


def train(
    make: Make, device: str, dtype: torch.dtype = torch.float32, *, changes_rate: bool = True
) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """The weights after NUM_STEPS in two groups, and the optimizer."""
    tensors = make_parameters(device, dtype)
    optimizer = make(grouped(tensors))
    take_steps(optimizer, tensors, stop=FEWER)
    if changes_rate:
        for group in optimizer.param_groups:
            group["lr"] /= 2
    return take_steps(optimizer, tensors, start=FEWER), optimizer


def _vendors() -> Any:
    return vendor.package().hpex.optimizers


def _adam() -> Any:
    """Adam, which `hpex.optimizers` exports up to release 1.20 alone."""
    from habana_frameworks.torch.hpex.optimizers.mark_step_adam import (  # noqa: TID251
        Adam,
    )

    return Adam


def _sgd(**settings: Any) -> Make:
    return lambda groups: _vendors().FusedSGD(groups, lr=1.0, **settings)


def _lars(groups: Groups) -> torch.optim.Optimizer:
    momentum = _vendors().FusedResourceApplyMomentum(groups, 1.0, momentum=0.9)
    return _vendors().FusedLars(momentum, [1, 0], eeta=0.02)


def _adagrad(groups: Groups) -> torch.optim.Optimizer:
    return _vendors().FusedAdagrad(
        [group | {"lr": 0.1} for group in groups],
        lr=0.1,
        lr_decay=0.2,
        initial_accumulator_value=0.5,
        eps=1e-3,
    )


CASES: dict[str, Make] = {
    "sgd": _sgd(),
    "sgd_momentum": _sgd(momentum=0.9),
    "sgd_nesterov": _sgd(momentum=0.9, nesterov=True),
    "sgd_dampening": _sgd(momentum=0.9, dampening=0.3),
    "lars": _lars,
    "adam": lambda groups: _adam()(groups, amsgrad=True),
}
"""What runs in both modes."""

LAZY_CASES: dict[str, Make] = {
    "adagrad": _adagrad,
    "adagrad_with_rates": lambda groups: _vendors().FusedAdagrad(groups, lr=0.1),
}


def _run(make: Make, *, changes_rate: bool) -> dict[str, Any]:
    import _hpu_sim  # found once torch has started the simulator

    counts: list[dict[str, int]] = []  # before and after each step

    def note(*args: object) -> None:
        num_host_syncs = sum(_hpu_sim.host_syncs().values())
        counts.append(_hpu_sim.graph_stats() | {"num_host_syncs": num_host_syncs})

    def counted(groups: Groups) -> torch.optim.Optimizer:
        optimizer = make(groups)
        optimizer.register_step_pre_hook(note)
        optimizer.register_step_post_hook(note)
        return optimizer

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights, optimizer = train(counted, "hpu", changes_rate=changes_rate)
    groups = optimizer.state_dict()["param_groups"]
    late = list(zip(counts[4::2], counts[5::2], strict=True))
    return {
        "weights": weights,
        "messages": [(str(w.message), w.filename) for w in caught],
        "after_second_step": {
            name: sum(after[name] - before[name] for before, after in late)
            for name in ("num_compilations", "num_mark_steps", "num_host_syncs")
        },
        "tensors": [
            {name: value for name, value in group.items() if isinstance(value, Tensor)}
            for group in groups
        ],
    }


if __name__ == "__main__":
    results = {
        name: _run(make, changes_rate=name != "adagrad")
        for name, make in (CASES | LAZY_CASES).items()
    }
    torch.save(results, sys.argv[1])
