"""What holds a card's memory when there is no more: a report for the error, by category.

The vendor's driver says that an allocation failed, and a simulated card also what was asked, used
and the limit; neither knows what the memory is for.
Source: Intel Gaudi documentation, "Memory Stats APIs"; PyTorch bridge 1.24.0, whose allocator
raises "Allocation failed for size".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi._core import vendor

REST = "activations and the rest"
"""What no model or optimizer holds."""

_MESSAGES = re.compile(r"out of memory|allocation failed|cannot allocate|OUT_OF_MEMORY", re.I)
_BUCKETS = re.compile(r"bucket|ipg_buffer|reduce_tmp|contiguous_grad", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def by_category(module: Any, optimizers: Sequence[Any]) -> dict[str, int]:
    """What is on the card now: weights, gradients, optimizer state and buckets, in bytes.

    Args:
        module: The model, wrapped or not; None where there is none.
        optimizers: Of torch or DeepSpeed.
    """
    return {
        name: sum(each.untyped_storage().nbytes() for each in tensors)
        for name, tensors in holders(module, optimizers).items()
    }


def holders(module: Any, optimizers: Sequence[Any]) -> dict[str, list[Tensor]]:
    """The same as tensors: one for each piece of memory, in the first category that has it.

    It is read off tensors that the host has; nobody waits for the card.
    """
    seen: set[int] = set()
    parameters = [] if module is None else list(module.parameters())
    buffers = [] if module is None else list(module.buffers())
    return {
        "weights": _on_card([*parameters, *buffers, *_shards(optimizers)], seen),
        "gradients": _on_card((each.grad for each in parameters), seen),
        "optimizer state": _on_card(_states(optimizers), seen),
        "communication buckets": _on_card(_buckets([module, *optimizers]), seen),
    }


def with_rest(sizes: Mapping[str, int], used: int) -> dict[str, int]:
    """The categories and what they leave of the bytes in use."""
    return {**sizes, REST: max(0, used - sum(sizes.values()))}


def report(module: Any, optimizers: Sequence[Any]) -> str:
    """What is on the card now, in words, with the rest; arguments as `by_category`."""
    stats = vendor.memory_stats()
    used, limit = stats["InUse"], stats["Limit"]
    sizes = with_rest(by_category(module, optimizers), used)
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in sizes.items())
    peak = _gib(stats["MaxInUse"])
    return f"the card held {_gib(used)} of {_gib(limit)} (at most {peak} before): {parts}"


def _on_card(tensors: Iterable[Any], seen: set[int]) -> list[Tensor]:
    """Those on the card whose memory has not been seen."""
    found: list[Tensor] = []
    for tensor in tensors:
        for local in _locals(tensor):
            storage = local.untyped_storage()
            # By the host's object: where it is on the card is not known before lazy mode has run.
            if local.device.type == "hpu" and storage._cdata not in seen:
                seen.add(storage._cdata)
                found.append(local)
    return found


def _locals(value: Any) -> Iterator[Tensor]:
    """The tensors that a value has on this rank."""
    if isinstance(value, Tensor):
        yield value.to_local() if hasattr(value, "to_local") else value
        shard = getattr(value, "ds_tensor", None)  # of ZeRO-3
        if isinstance(shard, Tensor):
            yield shard
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _locals(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _locals(each)


def _shards(optimizers: Sequence[Any]) -> Iterator[Any]:
    """The weights that torch's optimizers step: FSDP's model has others while it gathers them."""
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.Optimizer):
            for group in optimizer.param_groups:
                yield from group["params"]


def _states(optimizers: Sequence[Any]) -> Iterator[Any]:
    """What optimizers hold beside the weights; DeepSpeed's also have masters of them."""
    for optimizer in optimizers:
        yield getattr(optimizer, "state", {})
        for group in getattr(optimizer, "param_groups", []):
            yield group["params"]  # masters; weights have been counted


def _buckets(owners: Sequence[Any]) -> Iterator[Any]:
    for owner in owners:
        for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
            if _BUCKETS.search(name):
                yield value


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.2f} MiB"
