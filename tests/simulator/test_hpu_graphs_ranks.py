"""Collectives in captured graphs: part of them with lazy collectives, refused without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _hpu_sim
import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.helpers.ranks import run_ranks

hpu: Any = torch.hpu


def _sum(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    gathered = [torch.empty_like(y) for _ in range(dist.get_world_size())]
    work = dist.all_gather(gathered, x, async_op=True)
    work.wait()
    return functional.all_reduce(y + gathered[0] - gathered[1], "sum", dist.group.WORLD)


def _worker(rank: int) -> None:
    _hpu_sim.set_lazy(True)
    x = torch.ones(2, device="hpu") + rank
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="Set PT_HPU_ENABLE_LAZY_COLLECTIVES=true"):
            hpu.graphs.wrap_in_hpu_graph_func(_sum)(x)
        _hpu_sim.set_lazy_collectives(True)
        with pytest.raises(RuntimeError, match="barrier is not supported during HPU graph"):
            hpu.graphs.wrap_in_hpu_graph_func(lambda x: dist.barrier())(x)
        wrapped = hpu.graphs.wrap_in_hpu_graph_func(_sum)
        for step in range(4):
            x = torch.full((2,), 10.0 * step + rank, device="hpu")
            expected = _sum(x)
            _hpu_sim.reset_counters()
            assert torch.equal(wrapped(x), expected), step
        assert _hpu_sim.collectives()["all_reduce"]["calls"] == 2


def test_collectives_are_replayed_on_every_rank(tmp_path: Path) -> None:
    run_ranks(_worker, tmp_path, timeout=90)
