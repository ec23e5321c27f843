"""Defines the places of tensors in tables of scales, and small helpers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ....._missing import missing
from ....hpu import get_device_name

Init = Callable[[torch.Tensor], torch.Tensor]


class FP8TensorMeta:
    """Scales and measurements of the tensors of a module, of shape (tensors,) each."""

    scale = torch.Tensor()
    """Multiplies a tensor before it is rounded."""
    scale_inv = torch.Tensor()
    """What one unit of a rounded tensor means."""
    amax_history = torch.Tensor()
    """Largest absolute values, of shape (steps, tensors)."""
    amax_history_index = torch.Tensor()
    """The row of the present step, of shape (1,)."""


class FP8FwdTensors:
    """Places of the forward pass's tensors."""

    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM2_INPUT = 2
    GEMM2_WEIGHT = 3
    GEMM3_INPUT = 4
    GEMM3_WEIGHT = 5
    GEMM4_INPUT = 6
    GEMM4_WEIGHT = 7
    GEMM5_INPUT = 8
    GEMM5_WEIGHT = 9


class FP8BwdTensors:
    """Places of the backward pass's tensors."""

    GRAD_OUTPUT1 = 0
    GRAD_OUTPUT2 = 1
    GRAD_OUTPUT3 = 2
    GRAD_OUTPUT4 = 3
    GRAD_OUTPUT5 = 4


def is_gaudi3() -> bool:
    """Returns whether the card is a Gaudi 3."""
    return get_device_name() == "GAUDI3"


def cast_if_needed(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns the tensor in the dtype; None stays None."""
    return None if tensor is None else tensor.to(dtype)


def ensure_divisibility(numerator: int, denominator: int) -> None:
    """Checks that a number is a multiple of another.

    Raises:
        ValueError: It is not.
    """
    if numerator % denominator:
        raise ValueError(f"{numerator} is no multiple of {denominator}.")


def divide(numerator: int, denominator: int) -> int:
    """Returns the quotient of a number and one that divides it."""
    ensure_divisibility(numerator, denominator)
    return numerator // denominator


def init_method_normal(sigma: float) -> Init:
    """Returns an initialization from the normal distribution with standard deviation `sigma`."""

    def init(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.init.normal_(tensor, std=sigma)

    return init


def scaled_init_method_normal(sigma: float, num_layers: int) -> Init:
    """Returns `init_method_normal` for the layers that end residual branches."""
    return init_method_normal(sigma / math.sqrt(2.0 * num_layers))


def get_default_init_method() -> Init:
    """Returns the initialization of weights: standard deviation 0.023."""
    return init_method_normal(0.023)


__getattr__ = missing(__name__)
