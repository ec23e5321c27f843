"""Finds out how the card's allocator counts, by the vendor's `memory_stats()` before and after."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from lightning_gaudi._core import vendor
from lightning_gaudi.tools.verify.parts.context import Context, Tell

_MIB = 2**20
_MAX_SMALL = 2**12
_MAX_NUM_SMALL = 2**17
_NUM_GRAPHS = 5


def measure(context: Context, tell: Tell) -> None:
    """Reports the terms, and then what requests of many sizes add."""
    device = context.device
    at_start = _in_use()

    def added(num_bytes: int) -> int:
        before = _in_use()
        tensor = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        found = _in_use() - before
        del tensor
        return found

    small = _largest(lambda size: added(size) == 0, _MAX_SMALL)
    of_a_mib = added(_MIB)
    until_next = 1 + _largest(lambda size: added(_MIB + size) == of_a_mib, _MIB)
    alignment = added(_MIB + until_next) - of_a_mib
    tell(
        {
            "alignment_bytes": alignment,
            "header_bytes": of_a_mib - -(-_MIB // alignment) * alignment,
            "small_bytes": small,
            "num_small": _num_small(device) if small else 0,
            "at_start_bytes": at_start,
            "limit_bytes": vendor.memory_stats()["Limit"],
            "workspace_bytes": _workspace(device),
        }
    )
    most = 26 if context.is_small else 30
    for power in range(0, most + 1, 2):
        size = 2**power
        tell({"row": "allocations", "num_bytes": size, "added_bytes": added(size)})


def _in_use() -> int:
    return vendor.memory_stats()["InUse"]


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Returns the largest size for which a condition holds; 0 if it holds for none.

    Args:
        holds: Returns whether the condition holds for a size; beyond the largest it never does.
        most: The size at which to stop.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _num_small(device: torch.device) -> int:
    """Returns how many requests of a byte it takes until one adds to the memory in use."""
    held: list[torch.Tensor] = []
    before = _in_use()
    while len(held) < _MAX_NUM_SMALL:
        held.append(torch.empty(1, dtype=torch.uint8, device=device))
        if _in_use() != before:
            return len(held) - 1
    return 0  # no request adds anything, so that there is no pool


def _workspace(device: torch.device) -> int:
    """Returns the bytes that stay in use after graphs have run and their tensors are gone."""
    before = _in_use()
    for number in range(_NUM_GRAPHS):
        size = 256 * (number + 1)
        matrix = torch.ones(size, size, dtype=torch.bfloat16, device=device)
        (torch.softmax(matrix @ matrix, dim=-1) @ matrix).relu_()
        vendor.end_graph()
        vendor.synchronize()
        del matrix
    gc.collect()
    vendor.synchronize()
    return max(0, _in_use() - before)
