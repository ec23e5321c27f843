"""Measures the speeds of HCCL's collectives by size and number of cards."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from lightning_gaudi._core import vendor
from lightning_gaudi.tools.verify.parts.context import Context, Tell

_POWERS = (10, 14, 18, 20, 22, 24, 26, 28)
_POWERS_ON_CPU = (10, 16, 20)


def measure(context: Context, tell: Tell) -> None:
    """Reports, on rank 0, the seconds of each collective, and the bytes a second that a card sent.

    `num_bytes` is the size of the whole tensor that is reduced, gathered or scattered. In a ring
    each rank sends (n - 1) / n of it, and twice that for an all-reduce.
    """
    powers = _POWERS_ON_CPU if context.is_small else _POWERS
    for power in powers[::2] if context.is_quick else powers:
        for name, run in _collectives(context.device, 2**power, context.num_ranks).items():
            seconds = _seconds(run, 3 if context.is_small else 20)
            if context.rank != 0:
                continue
            share = (context.num_ranks - 1) / context.num_ranks
            sent = 2**power * share * (2 if name == "all_reduce" else 1)
            row = {"row": "collectives", "collective": name, "num_cards": context.num_ranks}
            tell({**row, "num_bytes": 2**power, "seconds": seconds, "bytes_per_s": sent / seconds})


def _collectives(
    device: torch.device, num_bytes: int, size: int
) -> dict[str, Callable[[], object]]:
    whole = torch.zeros(num_bytes // 2 // size * size, dtype=torch.bfloat16, device=device)
    part = torch.zeros(len(whole) // size, dtype=torch.bfloat16, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }


def _seconds(run: Callable[[], object], number: int) -> float:
    """Returns the seconds of one call; all ranks make as many, so that none waits for another."""
    for _ in range(2):
        run()
    vendor.synchronize()
    started = time.perf_counter()
    for _ in range(number):
        run()
    vendor.synchronize()
    return (time.perf_counter() - started) / number
