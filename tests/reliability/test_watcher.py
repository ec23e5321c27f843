"""The process that watches the ranks of a host, beside ranks that hang, wait, leave and die."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi._core import progress
from lightning_gaudi.reliability.heartbeat_store import LEFT, RUNS, Board, Limits

ROOT = Path(__file__).parents[2]

RANK = f"""
import sys, json, time, ctypes, os
sys.path.insert(0, {str(ROOT)!r})
from lightning_gaudi._core import processes, progress
from lightning_gaudi.reliability import stacks, watchdog, links
from lightning_gaudi.reliability.heartbeat_store import Board, Limits
from lightning_gaudi.reliability.stacks import Process

rank, host, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
board = Board.new(Limits(3.0, 60.0, 1.5, 2.0))
process = stacks.prepare(board.path)._replace(host=host)
told = {{"process": process}}
listener = links.listen("127.0.0.1", is_one_machine=True) if rank == 0 else None
if listener is not None:
    told["address"] = listener.getsockname()
print(json.dumps(told), flush=True)
others = json.loads(sys.stdin.readline())
meeting = watchdog.Meeting(rank, [Process(*other["process"]) for other in others], "ab" * 32)
if len(set(meeting.hosts)) > 1:
    meeting.address, meeting.listener = tuple(others[0]["address"]), listener
watchdog.start(object(), board, meeting)
progress.enter("forward", 4, is_training=True, new_batch=True)

def hold():
    never, _ = os.pipe()
    ctypes.PyDLL(None).read(never, ctypes.create_string_buffer(1), 1)

if end == "waits":
    with progress.waiting("all_reduce"):
        time.sleep(60)
elif end == "sleeps":
    time.sleep(60)
elif end == "holds":
    hold()
elif end.startswith("takes "):
    for _ in range(1200):
        progress.enter("forward", is_training=True, new_batch=True)
        progress.note_pace(float(end.split()[1]), 0.0)
        time.sleep(0.05)
elif end == "goes on":
    for _ in range(600):
        progress.enter("forward", is_training=True, new_batch=True)
        time.sleep(0.1)
"""
"""A rank without torch, which reaches the watchdog as one with torch does."""


class Rank:
    """A process that is a rank, and what it and its watching process say."""

    def __init__(self, rank: int, host: str, end: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), host, end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told: dict[str, Any] = {}

    def wait(self, timeout: float = 60) -> tuple[int, str]:
        """How it ended, and what was said until all that write there have ended."""
        _, output = self.process.communicate(timeout=timeout)
        return self.process.returncode, output


@contextlib.contextmanager
def _ranks(*ends: str, hosts: str = "") -> Iterator[list[Rank]]:
    """Ranks that know each other; `hosts` has a letter for the host of each."""
    ranks = [Rank(n, (hosts or "a" * len(ends))[n], end) for n, end in enumerate(ends)]
    try:
        for rank in ranks:
            assert rank.process.stdout is not None
            rank.told = json.loads(rank.process.stdout.readline())
        for rank in ranks:
            assert rank.process.stdin is not None
            rank.process.stdin.write(json.dumps([each.told for each in ranks]) + "\n")
            rank.process.stdin.flush()
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()


def _watchers(rank: Rank) -> list[int]:
    """The watching processes that a rank has started, and that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == rank.process.pid and b"watchdog" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _wait_for_watchers(rank: Rank) -> list[int]:
    end = time.monotonic() + 30
    while not (found := _watchers(rank)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.slow_but("sleeps-waits-aa")
@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize(("hangs", "waits"), [("sleeps", "waits"), ("holds", "waits")])
def test_the_rank_that_hangs_is_named_on_every_host(hangs: str, waits: str, hosts: str) -> None:
    with _ranks(waits, hangs, hosts=hosts) as ranks:
        results = [rank.wait() for rank in ranks]
    said = "".join(output for _, output in results)
    assert "[rank: 0] ends: rank 1 hangs: it is " in said
    assert f"in {'time.sleep' if hangs == 'sleeps' else 'read'}" not in said
    assert "the Python stack of rank 1:" in said
    assert results[0][0] == 1
    assert results[1][0] == (1 if hangs == "sleeps" else -signal.SIGKILL)
    assert said.count("where every rank stood") == len(set(hosts))


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_rank_that_is_killed_is_named(hosts: str) -> None:
    with _ranks("waits", "waits", hosts=hosts) as ranks:
        if len(set(hosts)) > 1:  # of a host that was never heard of nobody knows
            _wait_for_watchers(ranks[1])
            time.sleep(2)
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        status, said = ranks[0].wait()
    assert status == 1
    assert f"rank 1 (process {ranks[1].process.pid}) " in said
    assert "in step 4, the collective all_reduce" in said or "in step 0" in said


@pytest.mark.slow
def test_the_first_rank_is_named_though_it_has_started_what_watches() -> None:
    with _ranks("waits", "waits") as ranks:
        watchers = _wait_for_watchers(ranks[0])
        time.sleep(1)
        os.kill(ranks[0].process.pid, signal.SIGKILL)
        status, said = ranks[1].wait()
        assert status == 1
        assert f"[rank: 1] ends: rank 0 (process {ranks[0].process.pid}) " in said
        _wait_until_gone(watchers)


def _wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 30
    assert pids
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids):
        if all(_is_zombie(pid) for pid in pids):
            return
        assert time.monotonic() < end, pids
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
def test_what_watches_is_small_has_no_secrets_and_survives_what_ends_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    with _ranks("goes on", "goes on") as ranks:
        [pid] = _wait_for_watchers(ranks[0])
        assert _watchers(ranks[1]) == []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        time.sleep(1)
        assert not _is_zombie(pid)
        assert b"a-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"torch" not in Path(f"/proc/{pid}/maps").read_bytes()
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        assert int(status["VmRSS"].split()[0]) < 40 * 1024
        files = {os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
        assert not [file for file in files if "accel" in file]
        os.kill(pid, signal.SIGKILL)
        stderr = ranks[0].process.stderr
        assert stderr is not None
        assert select.select([stderr], [], [], 30)[0]
        assert "the process that watches the ranks of this host has ended" in stderr.readline()
        assert ranks[0].process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_a_slow_rank_is_named_by_the_host_of_rank_0(
    hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "hl-smi"
    tool.write_text('#!/bin/sh\necho ", 88, 99 %, 480 W, 0, 12, 7, 3"\n')  # of a card without slot
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with _ranks("takes 0.1", "takes 0.11", "takes 0.3", hosts=hosts) as ranks:
        stderr = ranks[0].process.stderr
        assert stderr is not None
        assert select.select([stderr], [], [], 60)[0]
        said = stderr.readline()
    assert "rank 2 is slow for " in said
    assert "it takes 300.0 ms from the end of a step to backward" in said
    assert "and the others 110.0 ms (2.7 times)" in said
    assert "temperature 88, utilization 99 %, power 480 W" in said


@pytest.mark.slow
def test_when_all_leave_nothing_is_left_and_nothing_is_said() -> None:
    with _ranks("leaves", "leaves") as ranks:
        assert [rank.wait() for rank in ranks] == [(0, ""), (0, "")]


def test_a_board_is_read_as_it_was_written() -> None:
    board = Board.new(Limits(30.0, 600.0))
    other = Board.opened(board.path, writes=True)
    assert (other.state, other.limits) == (RUNS, Limits(30.0, 600.0))
    board.state = LEFT
    assert other.state == LEFT
    other.order = "why \N{SNOWMAN}" * 10_000
    assert board.order.startswith("why \N{SNOWMAN}why")
    number = other.ask_for_stack()
    assert board.is_stack_wanted
    assert other.stack(number) == ""
    board.give_stack("in <module>")
    assert other.stack(number) == "in <module>"
    assert not board.is_stack_wanted
    progress.copy_to(board.memory)
    try:
        progress.enter("a place " * 20, 7, is_training=True)
        with progress.waiting("barrier"):
            found = progress.read(other.memory)
            assert found is not None
            assert found.place == ("a place " * 20)[:64]
            assert found._replace(place="") == progress.now()._replace(place="")
    finally:
        progress.copy_to(None)
        progress.enter("the start", 0, is_training=False)


def test_a_board_full_of_noise_is_read_without_an_error() -> None:
    board = Board.new(Limits(1.0, 2.0))
    for seed in range(50):
        noise = bytes((seed * 31 + place * (seed | 1) * 7) % 256 for place in range(4096))
        board.memory[: len(noise)] = noise
        assert board.state in (RUNS, LEFT, "failed")
        assert all(each < float("inf") for each in (board.python_at, *board.limits))
        assert len(board.order) <= 64 * 1024
        progress.read(board.memory)
    assert progress.read(Board.new(Limits(1.0, 2.0)).memory) is None
