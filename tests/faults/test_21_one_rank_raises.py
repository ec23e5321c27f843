"""When one rank fails, wherever that is, all end soon, and the rank and its error are named."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.started import ROOT, program, started

PROGRAM = str(ROOT / "tests" / "faults" / "raising.py")
END_S, TIMES = 15.0, 5
PLACES = (
    *("setup", "forward", "backward", "hook", "worker", "validation", "callback", "saving"),
    *("fabric", "plain", "destroyed", "registered", "forward:exit", "forward:interrupt"),
)
STATUS = {"forward:exit": 3, "forward:interrupt": 130}
"""With which the rank ends that fails; 1 elsewhere."""

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_end_when_one_fails(
    size: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    cases = [(place, size, (size + time) % size) for place in PLACES for time in range(TIMES)]
    with started([sys.executable, PROGRAM, str(tmp_path), json.dumps(cases)], tmp_path) as run:
        assert run.wait(3000) == 0, run.output[-3000:]
        lines = [line for line in run.output.splitlines() if line.startswith('{"number"')]
    jobs = [json.loads(line) for line in lines]
    assert len(jobs) == len(cases)
    for job in jobs:
        _check(tmp_path / str(job["number"]), job)
    took = sorted(job["took"] for job in jobs)
    assert took[-1] < END_S, took[-10:]
    measured(
        f"1 of {size} ranks at {len(PLACES)} places, {TIMES} times each: all ended within "
        f"{took[-1]:.1f} s, half within {took[len(took) // 2]:.1f} s"
    )


def _check(folder: Path, job: dict[str, object]) -> None:
    place, rank, statuses = str(job["place"]), job["rank"], job["statuses"]
    assert isinstance(rank, int)
    assert isinstance(statuses, list)
    said = [path.read_text() for path in sorted(folder.glob("output*"))]
    assert statuses[rank] == STATUS.get(place, 1), (job, said[rank])
    if place == "plain":  # all come to the end of the group, and the others have no error
        assert "ValueError: trouble at plain on purpose" in said[rank]
        assert [status for each, status in enumerate(statuses) if each != rank and status] == []
        return
    assert 0 not in statuses, (job, said)
    if ":" not in place:
        assert f"trouble at {place} on purpose" in said[rank], job
        assert re.search(rf"\[rank: {rank}\] ValueError|ValueError: trouble", said[rank]), job
    assert any(re.search(rf"rank:? {rank}\b", text) for text in _others(said, rank)), (job, said)


def _others(said: list[str], rank: int) -> list[str]:
    return said[:rank] + said[rank + 1 :]


@pytest.mark.parametrize(
    ("launcher", "place"),
    [("script", "main"), ("script", "step"), ("ddp_spawn", "step"), ("torchrun", "step")],
)
def test_whoever_has_started_the_ranks_ends_with_them(
    launcher: str, place: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    strategy = "ddp_spawn" if launcher == "ddp_spawn" else "ddp"
    command = program(tmp_path, devices=2, num_batches=4000, strategy=strategy)
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node=2", *command[1:]]
    with started(command, tmp_path, {"TROUBLE": f"{place}:1:raise"}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(2 * END_S)
        took = time.time() - began
        assert run.process.returncode == 1, run.output
        assert f"ValueError: trouble at {place} on purpose" in run.output
    assert took < END_S, took
    measured(f"rank 1 of 2 in {place}, {launcher}: status 1, {took:.1f} s")
