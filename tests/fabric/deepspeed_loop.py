"""Fabric's loop over the trainings of `sharded_cases`, whatever holds the model's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from tests.strategies.sharded_cases import loader, make_net

MAX_NORM = 0.3


def two_cards(**settings: Any) -> Fabric:
    fabric = Fabric(**{"accelerator": "hpu", "devices": 2, **settings})
    fabric.launch()
    return fabric


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


def train(
    fabric: Fabric,
    *,
    make: Callable[[], nn.Module] = make_net,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    accumulate: int = 1,
    max_norm: float | None = None,
    is_scheduled: bool = False,
    syncs_each: bool = False,
) -> list[float]:
    """The loss of each step on this rank; see `sharded_cases` for the samples.

    Args:
        fabric: Launched, of two ranks.
        make: Makes the model, within `Fabric.init_module` if that is not `make_net`.
        make_optimizer: Makes its optimizer.
        accumulate: Batches for each step of the optimizer.
        max_norm: Of the gradients, for a strategy that clips when it is told.
        is_scheduled: Halve the learning rate every second step of the optimizer.
        syncs_each: Reduce the gradients of each batch, also where they are accumulated.
    """
    net = make()
    optimizer = make_optimizer(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if is_scheduled else None
    net, optimizer, *_ = fabric.setup(net, optimizer, scheduler=scheduler)
    losses: list[Tensor] = []
    for step, batch in enumerate(loader(fabric.global_rank, 2)):
        features, targets = fabric.to_device(batch)
        is_last = (step + 1) % accumulate == 0
        with fabric.no_backward_sync(net, enabled=not is_last and not syncs_each):
            loss = (net(features) - targets).pow(2).mean()
            fabric.backward(loss / accumulate)
        losses.append(loss.detach())
        if is_last:
            if max_norm is not None:
                fabric.clip_gradients(net, optimizer, max_norm=max_norm)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return [loss.item() for loss in losses]
