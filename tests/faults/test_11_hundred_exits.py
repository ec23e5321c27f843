"""Row 11, when nothing fails: ranks that have trained to the end end, beside other load."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.started import ROOT, started

PROGRAM = str(ROOT / "tests" / "faults" / "exiting.py")
COUNT, NUM_RANKS, LIMIT_S = 100, 4, 15.0


@contextlib.contextmanager
def _load(num_processes: int) -> Iterator[None]:
    """Processes that compute all the time."""
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
    command = [sys.executable, PROGRAM, str(tmp_path), str(COUNT), str(NUM_RANKS)]
    with _load(2), started(command, tmp_path) as run:
        assert run.wait(3500) == 0, run.output[-3000:]
        lines = run.output.splitlines()
        assert not run.left()
    jobs = [json.loads(line) for line in lines if line.startswith('{"status"')]
    assert [(job["status"], job["num_ranks"]) for job in jobs] == [(0, NUM_RANKS)] * COUNT
    took = sorted(job["after_s"] for job in jobs)
    assert took[-1] < LIMIT_S, took[-10:]
    measured(
        f"{COUNT} of {COUNT} jobs of {NUM_RANKS} ranks ended within {took[-1]:.1f} s of their end, "
        f"half within {took[COUNT // 2]:.1f} s"
    )
