"""Row 11, when nothing fails: ranks that have trained to the end end, beside other load."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.started import ROOT, Started, started

PROGRAM = str(ROOT / "tests" / "faults" / "exiting.py")
NUM_RANKS, LIMIT_S = 4, 15.0
COUNTS = (34, 33, 33)
"""Of jobs one after the other, of which three run at a time: each is the others' load, too."""


@contextlib.contextmanager
def _load(num_processes: int) -> Iterator[None]:
    """Some more processes, which compute all the time."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.timeout(3600)
def test_a_hundred_jobs_end_soon_after_their_last_step(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with _load(1), contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_jobs(tmp_path / str(i), n)) for i, n in enumerate(COUNTS)]
        for run in runs:
            assert run.wait(3500) == 0, run.output[-3000:]
        lines = [line for run in runs for line in run.output.splitlines()]
        assert not any(run.left() for run in runs)
    jobs = [json.loads(line) for line in lines if line.startswith('{"status"')]
    assert [(job["status"], job["num_ranks"]) for job in jobs] == [(0, NUM_RANKS)] * sum(COUNTS)
    took = sorted(job["after_s"] for job in jobs)
    assert took[-1] < LIMIT_S, took[-10:]
    measured(
        f"{len(took)} of {sum(COUNTS)} jobs of {NUM_RANKS} ranks, {len(COUNTS)} at a time, ended "
        f"within {took[-1]:.1f} s of their last step, half within {took[len(took) // 2]:.1f} s"
    )


def _jobs(folder: Path, count: int) -> contextlib.AbstractContextManager[Started]:
    folder.mkdir()
    return started([sys.executable, PROGRAM, str(folder), str(count), str(NUM_RANKS)], folder)
