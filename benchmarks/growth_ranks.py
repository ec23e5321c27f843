"""What 8 to 4,096 ranks ask of the store and of the process that watches them, and a hung one.

Our own code asks: each rank is a thread, or a host that speaks as a watching process does. Nothing
of torch runs but one store, to learn how much it serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch.distributed as dist
import torch.multiprocessing

from benchmarks import saving_ranks
from benchmarks.counted_store import CountedStore
from benchmarks.harness.curves import curve
from benchmarks.harness.interleaved import Effort
from benchmarks.harness.machine import ROOT
from benchmarks.harness.rows import RATIO, Row
from lightning_gaudi._core import processes
from lightning_gaudi._core.processes import farewell
from lightning_gaudi._core.processes.farewell import Farewell
from lightning_gaudi.distributed.elastic_rendezvous import agree_on_name, claim_rank
from lightning_gaudi.reliability.heartbeat_store import RUNS, Beat
from lightning_gaudi.reliability.links import Links
from lightning_gaudi.reliability.watcher import Watcher

SIZES = (8, 64, 512, 4096)
RANKS_PER_HOST = 8
LATE_S, LISTEN_S = 6.0, 2.0
SAMPLE = 64
"""So many ranks ask in the place of all while they wait."""
LIMIT_S, DOCUMENTED_S = 5.0, 10.0
"""After how long a rank hangs here, and after how long it is named at the latest: 5 s later."""

TENTH, LINEAR = 0.1, 1.1
_STACK_BYTES = 256 * 1024


class Asked(NamedTuple):
    """What ranks ask of a store."""

    start: int
    """Requests, until all have met and claimed their ranks."""
    waiting_per_s: float
    """While one is missing, rank 0, of which all want to know something."""
    listening_per_s: float
    """While they train."""
    end: int
    """Requests, until all have come to their ends and heard so."""
    num_bytes: int
    """What the store holds then."""


def all_together(num_ranks: int, do: Callable[[int], object]) -> None:
    """Have each rank do something."""
    threads = [threading.Thread(target=do, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask(num_ranks: int) -> Asked:
    """Let ranks meet, listen and end."""
    store = CountedStore()

    def meet(rank: int) -> None:
        claim_rank(store, rank, num_ranks)
        agree_on_name(store, rank, num_ranks)

    all_together(num_ranks, meet)
    start = store.num_requests
    farewells = []
    for rank in range(num_ranks):
        host = f"host{rank // RANKS_PER_HOST} pid:[1] {rank} 1"
        with mock.patch.object(processes, "describe", return_value=host):
            farewells.append(Farewell(None, "end", store, rank, num_ranks))
        farewells[-1].listen()
    met = store.num_requests
    time.sleep(LISTEN_S)
    listened = store.num_requests
    outcomes: list[str | None] = [""] * num_ranks

    def end(rank: int) -> None:
        outcomes[rank] = farewells[rank].wait()
        farewells[rank].close()

    # They are woken as they all have come; that each looks now and then whether one beside it has
    # died asks nothing of the store, and thousands of threads would have no processor for it.
    with (
        mock.patch.object(processes, "has_died", return_value=False),
        mock.patch.multiple(farewell, _POLL_S=5.0, _DEATH_S=60.0),
    ):
        all_together(num_ranks, end)
    assert set(outcomes) == {None}, set(outcomes)
    return Asked(
        start,
        waiting_per_s(num_ranks),
        (listened - met) / LISTEN_S,
        met - start + store.num_requests - listened,
        store.num_bytes,
    )


def waiting_per_s(num_ranks: int) -> float:
    """Requests a second of all ranks while rank 0 is missing, by some of them that ask."""
    store, num_asking = CountedStore(), min(num_ranks - 1, SAMPLE)
    counts = []

    def wait(rank: int) -> None:
        with contextlib.suppress(TimeoutError):
            agree_on_name(store, rank + 1, num_ranks)

    def watch() -> None:
        time.sleep(LATE_S / 2)
        counts.append(store.num_requests)
        time.sleep(LATE_S / 2)
        counts.append(store.num_requests)

    with mock.patch.object(CountedStore, "timeout", timedelta(seconds=LATE_S)):
        watching = threading.Thread(target=watch)
        watching.start()
        all_together(num_asking, wait)
        watching.join()
    return (counts[1] - counts[0]) / (LATE_S / 2) * (num_ranks - 1) / num_asking


def served_per_s(effort: Effort) -> float:
    """Requests a second that torch's store answers two processes with four connections each."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    seconds = effort.rounds(5)
    torch.multiprocessing.spawn(_besiege, (store.port, seconds, results), 2)
    return float(results.get() + results.get())


def _besiege(_: int, port: int, seconds: float, results: Any) -> None:
    timeout = timedelta(seconds=60)
    stores = [
        dist.TCPStore("127.0.0.1", port, None, False, timeout, wait_for_workers=False)  # type: ignore[attr-defined]
        for _ in range(4)
    ]
    counts = [0] * len(stores)
    end = time.monotonic() + seconds

    def besiege(number: int) -> None:
        store = stores[number]
        while time.monotonic() < end:
            for _ in range(50):
                store.add(f"key/{number}", 1)
            counts[number] += 50

    all_together(len(stores), besiege)
    results.put(sum(counts) / seconds)


_RANK_ZERO = """
import json, sys, time
from lightning_gaudi._core import progress
from lightning_gaudi.reliability import links, stacks, watchdog
from lightning_gaudi.reliability.heartbeat_store import Board, Limits
hosts, limit, key = json.loads(sys.argv[1])
board = Board.new(Limits(limit, 60.0))
own = stacks.prepare(board.path)
others = [own] + [own._replace(host=f"other{host} pid:[1]") for host in hosts[1:]]
meeting = watchdog.Meeting(0, others, key)
meeting.listener = links.listen("127.0.0.1", is_one_machine=True)
address = meeting.address = meeting.listener.getsockname()
watchdog.start(object(), board, meeting)
progress.enter("forward", 7, is_training=True, new_batch=True)
print(json.dumps([address, watchdog._current._watcher.pid]), flush=True)
with progress.waiting("all_reduce"):
    time.sleep(600)
"""
"""Rank 0, alone on its host; the watchdog is as it is in a fit."""


class Hung(NamedTuple):
    """How a rank that hangs is found."""

    named_after_s: float
    """Since it has stood still, until another host is told who it is."""
    cpu: float
    """Of a processor, that rank 0's watching process took."""
    mib: float
    """Its memory."""
    connected_s: float
    """Until all hosts had been heard of."""


def hang(num_ranks: int, ranks_per_host: int = RANKS_PER_HOST) -> Hung:
    """Let the last rank hang, and all others wait for it."""
    hosts = [0] + [1 + rank // ranks_per_host for rank in range(num_ranks - 1)]
    key = "ab" * 32
    rank_zero = subprocess.Popen(
        [sys.executable, "-c", _RANK_ZERO, json.dumps([hosts, LIMIT_S, key])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank_zero.stdout is not None
        address, pid = json.loads(rank_zero.stdout.readline())
        num_hosts = hosts[-1] + 1
        others = [
            Watcher({}, {}, hosts, host, Links(bytes.fromhex(key), host, num_hosts, None, address))
            for host in range(1, num_hosts)
        ]
        return _until_named(others, hosts, pid, tuple(address))
    finally:
        rank_zero.kill()
        rank_zero.communicate()


def _until_named(
    others: list[Watcher], hosts: list[int], pid: int, address: tuple[str, int]
) -> Hung:
    hung, begin = len(hosts) - 1, time.monotonic()
    for watcher in others:
        watcher._links._address = address
    connected_s, cpu = 0.0, _cpu_s(pid)
    stands_since, deadline = begin, begin + 6 * DOCUMENTED_S
    while time.monotonic() < deadline:
        now = time.monotonic()
        for watcher in others:
            _stand(watcher, hosts, hung, now - stands_since)
            told = watcher._listen()
            if told is not None:
                assert told[0].ranks == (hung,), told[0]
                mib = _resident_mib(pid)
                took = time.monotonic() - begin
                named = time.monotonic() - stands_since
                return Hung(named, (_cpu_s(pid) - cpu) / took, mib, connected_s)
            watcher._tell()
        # It begins to stand when all hosts have been heard of, as in a fit that goes on for long.
        if not connected_s:
            stands_since = time.monotonic()
            if all(watcher._heard_at for watcher in others):
                connected_s = time.monotonic() - begin
        time.sleep(max(0.0, 0.2 - (time.monotonic() - now)))
    raise RuntimeError(f"Rank {hung} of {len(hosts)} hung, and nobody said so.")


def _stand(watcher: Watcher, hosts: list[int], hung: int, still_s: float) -> None:
    """Have the ranks of a host stand where they are: in a collective, or before it."""
    rank = bisect_left(hosts, watcher._host)
    while rank < len(hosts) and hosts[rank] == watcher._host:
        collective = None if rank == hung else "all_reduce"
        place = "forward" if rank == hung else "backward"
        position = (7, 0 if rank == hung else 1)
        beat = Beat(1, RUNS, 7, place, True, position, collective, "all_reduce", still_s)
        if rank == hung:  # its host has asked it in which call it is
            beat = beat._replace(call="training_step (train.py:12)", is_in_python=True)
        watcher._beats[rank] = beat
        rank += 1


def _cpu_s(pid: int) -> float:
    status = processes.status(pid)
    return 0.0 if status is None else status.ticks / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(effort: Effort) -> list[Row]:
    """Ask with each number of ranks; let one hang among each."""
    sizes = SIZES[:3] if effort.is_quick else SIZES
    before = threading.stack_size(_STACK_BYTES)
    try:
        asked = {size: ask(size) for size in sizes}
        saving = saving_ranks.measure(all_together, is_quick=effort.is_quick)
    finally:
        threading.stack_size(before)
    hung = {size: hang(size) for size in sizes}
    served, most = served_per_s(effort), asked[sizes[-1]]
    busiest = max(most.waiting_per_s, most.listening_per_s)
    name = f"{sizes[-1]:,} ranks"
    return [
        Row(
            f"{name}: requests a second of the store, of what one serves",
            busiest / served,
            RATIO,
            limit=TENTH,
            detail=f"{busiest:,.0f} while one is waited for, {most.listening_per_s:,.0f} while "
            f"they train; {served:,.0f} are served",
        ),
        *(
            Row(
                f"{size:,} ranks: a hung one is named",
                hung[size].named_after_s,
                "s",
                limit=DOCUMENTED_S,
                detail=f"limit {LIMIT_S:.0f} s; rank 0's watching process: "
                f"{100 * hung[size].cpu:.0f}% of a core, {hung[size].mib:.0f} MiB; "
                f"all hosts heard of after {hung[size].connected_s:.1f} s",
            )
            for size in sizes
        ),
        curve("requests until all have met", {n: a.start for n, a in asked.items()}, "", LINEAR),
        curve("requests until all have ended", {n: a.end for n, a in asked.items()}, "", LINEAR),
        curve("bytes in the store", {n: a.num_bytes for n, a in asked.items()}, "B", LINEAR),
        curve("memory of rank 0's watching process", {n: h.mib for n, h in hung.items()}, "MiB"),
        *saving,
    ]
