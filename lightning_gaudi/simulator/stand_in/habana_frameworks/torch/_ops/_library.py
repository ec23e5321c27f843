"""Defines operators of the vendor's: schema, device kernel and shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from lightning_gaudi.simulator.rules.table import report_kernel

from .._launch import one_kernel

_LIBRARY = torch.library.Library("hpu", "FRAGMENT")

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def operator(schema: str, fake: Callable[..., Any] | None = None) -> Callable[[Kernel], Kernel]:
    """Defines `hpu::<schema>` with the decorated function as its kernel.

    The kernel runs without autograd and without autocast, as a kernel on a card does.

    Args:
        schema: The operator's schema without its namespace.
        fake: Computes the outputs' shapes, for torch.compile; by default there are none.
    """
    name = schema.partition("(")[0]

    def decorate(kernel: Kernel) -> Kernel:
        _LIBRARY.define(schema)
        _LIBRARY.impl(name, device_kernel(kernel, f"hpu::{name}"), "HPU")
        torch.library.register_fake(f"hpu::{name}", fake or _no_outputs, lib=_LIBRARY)
        return kernel

    return decorate


def device_kernel(kernel: Kernel, operator: str = "") -> Kernel:
    """Makes `kernel` run without autograd and without autocast, as one launch.

    Args:
        kernel: The function that computes.
        operator: The operator's name, for the rules about it; empty for none.
    """

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        report_kernel(operator, args)
        with torch.no_grad(), torch.autocast("hpu", enabled=False), one_kernel():
            return kernel(*args, **kwargs)

    return run


def _no_outputs(*args: Any, **kwargs: Any) -> None:
    return None


def check_tensors(op: str, **lists: Sequence[object]) -> None:
    """Checks that the lists of tensors are as long as one another and not empty.

    Raises:
        RuntimeError: The lists differ in length, or are empty.
    """
    lengths = {name: len(tensors) for name, tensors in lists.items()}
    if 0 in lengths.values():
        raise RuntimeError(
            f"hpu::{op} got no tensors ({lengths}). A parameter group without parameters or "
            "without gradients cannot be updated: leave it out."
        )
    if len(set(lengths.values())) > 1:
        raise RuntimeError(f"hpu::{op} needs lists of one length, got {lengths}.")
