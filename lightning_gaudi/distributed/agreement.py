"""When to stop, agreed on by all ranks without waiting for one another."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .process_group import cpu_group


class StopAgreement:
    """All ranks stop at the same step if one was asked to, and none of them waits for it.

    Each step starts one reduction on the CPU and reads that of the step before.
    """

    def __init__(self) -> None:
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    def agree(self, *, wants_to_stop: bool) -> bool:
        """Whether a rank wanted to stop at the last step; all ranks call this at each step."""
        if self.finish():
            return True
        self._votes = torch.tensor([int(wants_to_stop)], dtype=torch.int32)
        self._work = dist.all_reduce(
            self._votes, dist.ReduceOp.MAX, group=cpu_group(), async_op=True
        )
        return False

    def finish(self) -> bool:
        """Wait for the reduction on its way; whether a rank wanted to stop."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._votes.item())
