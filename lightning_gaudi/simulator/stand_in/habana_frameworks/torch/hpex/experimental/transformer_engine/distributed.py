"""Implements activation checkpointing of modules in fp8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ....._missing import missing, not_simulated
from .constants import dist_group_type


class _Recompute:
    """Holds whether modules are called twice."""

    is_enabled = False


@contextmanager
def activation_checkpointing() -> Iterator[None]:
    """Tells modules that they are called without gradients first, and with them in the backward.

    It belongs inside the function that `torch.utils.checkpoint.checkpoint(..., use_reentrant=True)`
    runs. Modules then round with the same scales in both passes, and measure in the first.
    """
    before, _Recompute.is_enabled = _Recompute.is_enabled, True
    try:
        yield
    finally:
        _Recompute.is_enabled = before


def is_fp8_activation_recompute_enabled() -> bool:
    """Returns whether the caller is in `activation_checkpointing`."""
    return _Recompute.is_enabled


def checkpoint(
    function: Callable[..., Any],
    distribute_saved_activations: bool,
    get_cuda_rng_tracker: Callable[[], Any] | None,
    tp_group: dist_group_type | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Computes a part of a model again in the backward pass instead of keeping it.

    Args:
        function: The part; enter `fp8_autocast` in it.
        distribute_saved_activations: False.
        get_cuda_rng_tracker: None.
        tp_group: No effect without `distribute_saved_activations`.
        args: Its arguments.
        kwargs: Its arguments by name.

    Raises:
        NotImplementedError: An argument belongs to tensor parallelism.
    """
    if distribute_saved_activations or get_cuda_rng_tracker is not None:
        raise not_simulated(
            "transformer_engine.checkpoint with distribute_saved_activations or an RNG tracker",
            "These belong to tensor parallelism. Pass False and None.",
        )

    def run(*inputs: Any) -> Any:
        with activation_checkpointing():
            return function(*inputs, **kwargs)

    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=True)


__getattr__ = missing(__name__)
