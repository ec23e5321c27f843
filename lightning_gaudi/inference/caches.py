"""transformers' StaticCache with its tensors in place before anything is captured or compiled.

It makes them when a model first writes to it: in a step that is compiled or counted, that one would
differ from all that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .tensor_parallel import cache_config


def new_cache(
    model: Any, batch_size: int, num_slots: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """An empty StaticCache; `has_tensors` says whether its tensors are there."""
    from transformers import StaticCache

    # transformers before 4.54 makes the tensors here, and wants all of it; later ones drop some.
    return StaticCache(
        config=cache_config(model),
        max_batch_size=batch_size,
        max_cache_len=num_slots,
        device=device,
        dtype=dtype,
    )


def has_tensors(cache: Any) -> bool:
    """Whether the cache has the tensors that a model writes to."""
    return all(layer.is_initialized for layer in getattr(cache, "layers", ()))


def make_tensors(
    cache: Any, model: Any, forward: Callable[[Callable[..., Any]], None], device: torch.device
) -> None:
    """Give a cache the tensors that the model will write to, and launch nothing for it.

    The shapes are what the model writes on the meta device: for that all of it must be in this
    process, and autocast off.

    Args:
        cache: As `new_cache` has made it.
        model: What will write to it.
        forward: Runs a model that it is given as a function, on tensors of the meta device.
        device: Where the model is.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    on_meta = {name: torch.empty_like(value, device="meta") for name, value in state.items()}

    def call(**given: Any) -> Any:
        return torch.func.functional_call(model, on_meta, (), given)

    forward(call)
    for layer in cache.layers:
        # Not zeros, which would be launched: `reset` fills them before the first use.
        layer.keys = torch.empty_like(layer.keys, device=device)
        layer.values = torch.empty_like(layer.values, device=device)
        layer.device = device
        count: Tensor | None = getattr(layer, "cumulative_length", None)
        if count is not None:
            layer.cumulative_length = torch.zeros(count.shape, dtype=count.dtype).to(device)
