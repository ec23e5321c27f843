"""Weights, their gradients, and steps of an optimizer with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

SHAPES = ((4, 3), (5,), (2, 2, 2), ())
NUM_STEPS = 6


def make_parameters(device: str = "hpu", dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def gradients() -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_STEPS):
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


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
