"""A rank that is missing or dies: the others raise, and none waits for ever."""

import datetime
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.helpers.ranks import call_forked

_TIMEOUT_S = 2
_GROUP_TIMEOUT_S = 120


def _work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "hccl",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=3,
        timeout=datetime.timedelta(seconds=_GROUP_TIMEOUT_S),
    )
    impatient = dist.new_group(timeout=datetime.timedelta(seconds=_TIMEOUT_S))
    tensor = torch.ones(4, device="hpu")
    dist.all_reduce(tensor)  # all ranks are there
    report = {}
    if rank > 0:  # rank 0 is missing
        report["missing"] = _error_of(lambda: dist.all_reduce(tensor, group=impatient))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    report["killed"] = _error_of(lambda: dist.all_reduce(tensor))
    report["killed_s"] = time.monotonic() - start
    report["future"] = _error_of(lambda: dist.all_reduce(tensor, async_op=True).get_future().wait())
    report["coalesced"] = _error_of(lambda: _coalesced(tensor).get_future().wait())
    report["received"] = _error_of(lambda: dist.irecv(tensor, src=1).get_future().wait())
    (folder / f"{rank}.json").write_text(json.dumps(report))
    os._exit(0)  # the group is broken


def _coalesced(tensor: torch.Tensor) -> dist.Work:
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_tensor(tensor[:1], tensor[:3])
    return manager.works[0]


def _error_of(function) -> str:
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the ranks that live saw, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    call_forked(_fork_ranks, folder, timeout=120)
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 2)}


def _fork_ranks(folder: Path) -> None:
    context = torch.multiprocessing.start_processes(
        _work, (folder,), 3, join=False, start_method="fork"
    )
    for process in context.processes:
        process.join(timeout=60)
    still_running = [i for i, process in enumerate(context.processes) if process.is_alive()]
    for process in context.processes:
        process.kill()
    assert not still_running


def test_a_missing_rank_ends_the_collective_after_the_timeout(reports):
    assert f"Timed out waiting {_TIMEOUT_S * 1000}ms" in reports[2]["missing"]


def test_a_killed_rank_ends_the_collectives_of_the_others(reports):
    for report in reports.values():
        assert "Connection closed by peer" in report["killed"] or "reset" in report["killed"]
        assert report["killed_s"] < _GROUP_TIMEOUT_S / 4


def test_futures_hear_of_a_killed_rank(reports):
    for report in reports.values():
        for kind in ("future", "coalesced", "received"):
            assert report[kind] != "no error", kind
