"""A rank that is missing or dies: HCCL notices neither, and the others wait for ever."""

import datetime
import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.helpers.ranks import call_forked

_TIMEOUT_S = 2
_WAIT_S = 5.0
"""Longer than the timeout of the group, in which HCCL's own wait for ever."""


def _work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group("hccl", store=store, rank=rank, world_size=3)
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    impatient = dist.new_group(timeout=timeout)
    on_cpu = dist.new_group(backend="gloo")
    tensor = torch.ones(4, device="hpu")
    dist.all_reduce(tensor)  # all ranks are there
    report = {}
    if rank > 0:  # rank 0 is missing
        report["missing"] = _waits(lambda: dist.all_reduce(tensor.clone(), group=impatient))
        report["met"] = _waits(lambda: dist.barrier(group=impatient))
    dist.monitored_barrier(on_cpu)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    report["gloo"] = _waits(lambda: dist.all_reduce(torch.ones(1), group=on_cpu))
    report["killed"] = _waits(lambda: dist.all_reduce(tensor))
    work = dist.all_reduce(tensor, async_op=True)
    report["future"] = _waits(lambda: work.get_future().wait())
    report["completed"] = work.is_completed()
    report["coalesced"] = _waits(lambda: _coalesced(tensor).get_future().wait())
    report["sent"] = _waits(lambda: dist.send(tensor, 1))
    report["received"] = _waits(lambda: dist.recv(tensor, 1))
    (folder / f"{rank}.json").write_text(json.dumps(report))
    os._exit(0)  # the group is broken


def _coalesced(tensor: torch.Tensor) -> dist.Work:
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_tensor(tensor[:1], tensor[:3])
    return manager.works[0]


def _waits(function) -> str:
    """Call a function in a thread; "waits" if it does after a while, else how it ended."""
    found = ["waits"]

    def call() -> None:
        try:
            function()
            found.append("ended")
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    return found[-1]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the ranks that live saw, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    call_forked(_fork_ranks, folder, timeout=240)
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 2)}


def _fork_ranks(folder: Path) -> None:
    context = torch.multiprocessing.start_processes(
        _work, (folder,), 3, join=False, start_method="fork"
    )
    for process in context.processes:
        process.join(timeout=200)
    still_running = [i for i, process in enumerate(context.processes) if process.is_alive()]
    for process in context.processes:
        process.kill()
    assert not still_running


@pytest.mark.slow
def test_a_missing_rank_is_waited_for_beyond_the_timeout(reports):
    assert (reports[2]["missing"], reports[2]["met"]) == ("waits", "waits")


@pytest.mark.slow
def test_a_killed_rank_is_waited_for_though_gloo_notices(reports):
    for report in reports.values():
        assert "Connection closed by peer" in report["gloo"] or "reset" in report["gloo"]
        kinds = ("killed", "future", "coalesced", "sent", "received")
        assert {kind: report[kind] for kind in kinds} == dict.fromkeys(kinds, "waits")
        assert not report["completed"]
