"""Fabric's loop over the trainings of `sharded_cases`, whatever holds the model's weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from tests.strategies.sharded_cases import loader, make_net


def cards(num: int = 2, **settings: Any) -> Fabric:
    """Fabric on several cards, launched."""
    fabric = Fabric(**{"accelerator": "hpu", "devices": num, **settings})
    fabric.launch()
    return fabric


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def cpu_adamw(net: nn.Module) -> torch.optim.Optimizer:
    """DeepSpeed's, on the CPU."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(net.parameters(), lr=1e-2, weight_decay=1e-2)


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
    zeros_first: bool = False,
) -> list[float]:
    """The loss of each batch on this rank; see `sharded_cases` for the samples.

    Args:
        fabric: Launched.
        make: Makes the model, within `Fabric.init_module` if that is not `make_net`.
        make_optimizer: Makes its optimizer.
        accumulate: Batches for each step of the optimizer.
        max_norm: Of the gradients, for a strategy that clips when it is told.
        is_scheduled: Halve the learning rate every second step of the optimizer.
        syncs_each: Reduce the gradients of each batch, also where they are accumulated.
        zeros_first: Zero the gradients before a step and not after it.
    """
    net = make()
    optimizer = make_optimizer(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if is_scheduled else None
    net, optimizer, *_ = fabric.setup(net, optimizer, scheduler=scheduler)
    losses: list[Tensor] = []
    for step, batch in enumerate(loader(fabric.global_rank, fabric.world_size)):
        features, targets = fabric.to_device(batch)
        is_last = (step + 1) % accumulate == 0
        if zeros_first:
            optimizer.zero_grad()
        is_apart = accumulate > 1 and not syncs_each
        with fabric.no_backward_sync(net, enabled=not is_last) if is_apart else nullcontext():
            loss = (net(features) - targets).pow(2).mean()
            fabric.backward(loss / accumulate)
        losses.append(loss.detach())
        if is_last:
            if max_norm is not None:
                fabric.clip_gradients(net, optimizer, max_norm=max_norm)
            optimizer.step()
            if not zeros_first:
                optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return [loss.item() for loss in losses]


def train_masters(
    fabric: Fabric,
    *,
    device: str = "hpu",
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    accumulate: int = 1,
    max_norm: float | None = None,
    is_scheduled: bool = False,
) -> list[float]:
    """What ZeRO in bf16, or with its optimizer on the CPU, is without ZeRO.

    The weights have a copy in fp32, which is trained.

    Args:
        fabric: Launched, in bf16-true or 32-true.
        device: Of the copy.
        make_optimizer: See `train`, as of all others.
    """
    module = make_net()
    net = fabric.setup_module(module)
    masters = nn.ParameterList(
        [weight.detach().float().to(device) for weight in module.parameters()]
    )
    optimizer = make_optimizer(masters)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses: list[Tensor] = []
    for step, batch in enumerate(loader(fabric.global_rank, fabric.world_size)):
        features, targets = fabric.to_device(batch)
        is_last = (step + 1) % accumulate == 0
        with fabric.no_backward_sync(net, enabled=not is_last):
            loss = (net(features) - targets).pow(2).mean()
            fabric.backward(loss / accumulate)
        losses.append(loss.detach())
        if is_last:
            for weight, master in zip(module.parameters(), masters, strict=True):
                assert weight.grad is not None
                master.grad, weight.grad = weight.grad.float().to(device), None
            if max_norm is not None:
                nn.utils.clip_grad_norm_(masters, max_norm)
            optimizer.step()
            for weight, master in zip(module.parameters(), masters, strict=True):
                weight.data.copy_(master.data)
            if is_scheduled:
                scheduler.step()
    return [loss.item() for loss in losses]
