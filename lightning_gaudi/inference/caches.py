"""Makes transformers' StaticCache with its tensors in place before a step is captured or compiled.

transformers makes these tensors when a model first writes to the cache. A step that is compiled, or
whose launches are counted, would then differ from all that follow.
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
    """Returns an empty StaticCache; `has_tensors` says whether it has its tensors yet."""
    from transformers import StaticCache

    # transformers before 4.54 makes the tensors here, and needs all arguments; later releases
    # ignore some of them.
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
    """Returns keys and values of all layers, wherever this release of transformers keeps them."""
    layers = getattr(cache, "layers", None)
    if layers is None:  # before 4.54
        return [cache.key_cache, cache.value_cache]
    return [[getattr(layer, "keys", None), getattr(layer, "values", None)] for layer in layers]


def has_tensors(cache: Any) -> bool:
    """Returns whether the cache has the tensors that a model writes to."""
    return all(layer.is_initialized for layer in getattr(cache, "layers", ()))


def make_tensors(cache: Any, run: Callable[[], object], device: torch.device) -> None:
    """Gives a cache the tensors that a model will write to, without a launch.

    Only a run of the model tells their shapes and dtype. If its weights are cut up, its heads and
    sizes are not those of its configuration, and autocast may change the dtype.

    Args:
        cache: The cache that `new_cache` has made.
        run: Lets the model write a token to the cache; it is run on tensors without values.
        device: The model's device.

    Raises:
        Exception: The model cannot be run without values; the cache cannot be used any more.
    """
    from torch._subclasses import fake_tensor

    mode: Any = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    # The mode would compute with single numbers that it knows (torch 2.6 to 2.13), which would
    # launch operators and make graphs.
    mode.may_turn_const = lambda tensor: False
    with mode, _saying_nothing(logging.getLogger(fake_tensor.__name__)):
        run()
    for layer in cache.layers:
        # Not `torch.zeros`, which is a launch; `reset` fills them before their first use.
        layer.keys = torch.empty(layer.keys.shape, dtype=layer.keys.dtype, device=device)
        layer.values = torch.empty(layer.values.shape, dtype=layer.values.dtype, device=device)
        layer.device = device
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = torch.zeros((), dtype=torch.long).to(device)


@contextlib.contextmanager
def _saying_nothing(logger: logging.Logger) -> Iterator[None]:
    """Silences torch, which prints a stack in addition to the error that it raises."""

    def refuse(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
