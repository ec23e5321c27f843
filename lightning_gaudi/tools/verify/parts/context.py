"""Lets a process of a part take its card, and time what runs there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_gaudi._core import vendor

Tell = Callable[[dict[str, Any]], None]
"""Reports a row of figures."""


@dataclass
class Context:
    """Knows a process of a part: its rank, its card and its options."""

    rank: int
    num_ranks: int
    folder: Path
    """The folder in which the ranks meet."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The card."""
        return torch.device("hpu")

    @property
    def is_small(self) -> bool:
        """Whether sizes are those of a simulated card, which is a CPU."""
        return bool(self.options.get("is_small"))

    @property
    def is_quick(self) -> bool:
        """Whether a few sizes are enough."""
        return bool(self.options.get("is_quick"))

    def take_card(self) -> None:
        """Takes a card, and connects the ranks if there are several.

        The vendor's driver gives a single process any card that is free.
        """
        if self.num_ranks > 1:
            vendor.select_module(vendor.module_id(self.rank))
        vendor.package()
        vendor.init()
        if self.num_ranks > 1:
            vendor.init_hccl(self.num_ranks, self.rank, self.rank)
            store = dist.FileStore(str(self.folder / "store"), self.num_ranks)  # type: ignore[attr-defined]
            dist.init_process_group("hccl", store=store, rank=self.rank, world_size=self.num_ranks)

    def seconds(self, run: Callable[[], object], *, at_least_s: float = 0.02) -> float:
        """Returns the seconds of one call, measured over many that are waited for together.

        Args:
            run: The function to call; its first calls compile, and are not counted.
            at_least_s: How many seconds all calls together should take.
        """
        for _ in range(2):
            run()
            vendor.end_graph()
        number, passed = 1, 0.0
        at_least_s = at_least_s / 4 if self.is_quick else at_least_s
        while True:
            vendor.synchronize()
            started = time.perf_counter()
            for _ in range(number):
                run()
                vendor.end_graph()
            vendor.synchronize()
            passed = time.perf_counter() - started
            if passed >= at_least_s or number >= 2**14:
                return passed / number
            number *= 4


def presence(context: Context, tell: Tell) -> None:
    """Reports which card this is, once it has computed something."""
    (torch.ones(2).to(context.device) + 1).cpu()
    stats = vendor.memory_stats()
    tell(
        {
            "device_name": vendor.device_name(),
            "num_cards": vendor.num_visible_cards(),
            "limit_bytes": stats["Limit"],
            "in_use_bytes": stats["InUse"],
            "is_lazy": vendor.is_lazy(),
        }
    )
