"""transformers' StaticCache with its tensors in place before anything is captured or compiled.

It makes them when a model first writes to it: in a step that is compiled or counted, that one would
differ from all that follow.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lightning_gaudi._core.memory import tags as memory_tags

from .tensor_parallel import cache_config


def new_cache(
    model: Any, batch_size: int, num_slots: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """Returns an empty StaticCache; `has_tensors` says whether its tensors are there."""
    from transformers import StaticCache

    # transformers before 4.54 makes the tensors here, and wants all of it; later ones drop some.
    cache = StaticCache(
        config=cache_config(model),
        max_batch_size=batch_size,
        max_cache_len=num_slots,
        device=device,
        dtype=dtype,
    )
    memory_tags.declare(cache, "KV cache", _tensors)
    return cache


def _tensors(cache: Any) -> list[Any]:
    """Returns keys and values of all layers, as the releases of transformers keep them."""
    layers = getattr(cache, "layers", None)
    if layers is None:  # before 4.54
        return [cache.key_cache, cache.value_cache]
    return [[getattr(layer, "keys", None), getattr(layer, "values", None)] for layer in layers]


def has_tensors(cache: Any) -> bool:
    """Returns whether the cache has the tensors that a model writes to."""
    return all(layer.is_initialized for layer in getattr(cache, "layers", ()))


def make_tensors(cache: Any, run: Callable[[], object], device: torch.device) -> None:
    """Gives a cache the tensors that a model will write to, and launches nothing for it.

    What a model writes only a run tells: where its weights are cut up, heads and sizes are not
    those of its configuration, and autocast has a say in the dtype.

    Args:
        cache: As `new_cache` has made it.
        run: Has the model write a token to the cache; it is run on tensors without values.
        device: Where the model is.

    Raises:
        Exception: The model cannot be run without values; the cache is of no more use.
    """
    from torch._subclasses import fake_tensor

    mode: Any = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    # It computes with single numbers that it knows (torch 2.6 to 2.13): launches, and graphs.
    mode.may_turn_const = lambda tensor: False
    with mode, _saying_nothing(logging.getLogger(fake_tensor.__name__)):
        run()
    for layer in cache.layers:
        # Not zeros, which would be launched: `reset` fills them before the first use.
        layer.keys = torch.empty(layer.keys.shape, dtype=layer.keys.dtype, device=device)
        layer.values = torch.empty(layer.values.shape, dtype=layer.values.dtype, device=device)
        layer.device = device
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = torch.zeros((), dtype=torch.long).to(device)


@contextlib.contextmanager
def _saying_nothing(logger: logging.Logger) -> Iterator[None]:
    """Silences torch, which prints a stack beside the error that it raises."""

    def refuse(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
