"""Row 12, with a real Open MPI: its ranks train, end together, and go on where they are told."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.started import ROOT, Started, started

PROGRAM = str(ROOT / "tests" / "faults" / "restartable.py")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("mpirun") is None, reason="needs Open MPI (apt-get install openmpi-bin)"
    ),
]


def _command(folder: Path) -> list[str]:
    settings = {"devices": 2, "strategy": "ddp"}
    return [*MPIRUN, sys.executable, PROGRAM, str(folder), json.dumps(settings)]


def _killed_at(run: Started) -> float:
    found = re.search(r"trouble at ([\d.]+)", run.output)
    assert found is not None, run.output
    return float(found[1])


def test_ranks_of_mpirun_end_together_and_are_started_again(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """mpirun starts nothing again by itself; who calls it again passes the checkpoint."""
    with started(_command(tmp_path), tmp_path, {"FAULTS": "0:1:7"}) as run:
        assert run.wait(300) != 0, run.output
        took = time.time() - _killed_at(run)
        run.wait_for_all_to_end(15)
    newest = max(tmp_path.glob("runs/**/*.ckpt"), key=lambda path: path.stat().st_mtime)
    assert newest.name == "epoch=0-step=6.ckpt"
    with started(_command(tmp_path), tmp_path, {"CKPT_PATH": str(newest)}) as run:
        assert run.wait(300) == 0, run.output
    for rank in range(2):
        found = json.loads((tmp_path / f"start0-rank{rank}.json").read_text())
        assert (found["first_step"], found["last_step"]) == (6, 12)
    measured(f"a real mpirun: all ended {took:.1f} s after a kill; resumed from step 6")
