"""Reports what holds a card's memory, by category, for the error when there is none left.

The vendor's driver says that an allocation failed; a simulated card also gives the request, the use
and the limit. Neither knows what the memory is used for.
Source: Intel Gaudi documentation, "Memory Stats APIs"; PyTorch bridge 1.24.0, whose allocator
raises "Allocation failed for size".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lightning_gaudi._core import vendor

from .owners import holders

REST = "activations and the rest"
"""The category of memory that no model or optimizer holds."""

_MESSAGES = re.compile(r"out of memory|allocation failed|cannot allocate|OUT_OF_MEMORY", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that the device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def by_category(module: Any, optimizers: Sequence[Any]) -> dict[str, int]:
    """Returns what is on the card now, in bytes; arguments and categories as of `holders`."""
    return {
        name: sum(each.untyped_storage().nbytes() for each in tensors)
        for name, tensors in holders(module, optimizers).items()
    }


def with_rest(sizes: Mapping[str, int], used: int) -> dict[str, int]:
    """Returns the categories and what they leave of the bytes in use."""
    return {**sizes, REST: max(0, used - sum(sizes.values()))}


def report(module: Any, optimizers: Sequence[Any]) -> str:
    """Returns what is on the card now, in words, with the rest; arguments as of `holders`."""
    stats = vendor.memory_stats()
    used, limit = stats["InUse"], stats["Limit"]
    sizes = with_rest(by_category(module, optimizers), used)
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in sizes.items() if size)
    peak = _gib(stats["MaxInUse"])
    return f"the card held {_gib(used)} of {_gib(limit)} (at most {peak} before): {parts}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.2f} MiB"
