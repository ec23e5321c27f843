"""Row 12, with a real SLURM: a job that fails and is queued again goes on from its checkpoint."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.process import environment
from tests.helpers.slurm import Slurm, running_slurm
from tests.launch.started import ROOT

PROGRAM = str(ROOT / "tests" / "faults" / "restartable.py")
JOB = """
#SBATCH --nodes=1 --ntasks-per-node=2 --requeue --open-mode=append --output=output.txt
{srun} || {{ [ -n "$SLURM_RESTART_COUNT" ] || scontrol requeue "$SLURM_JOB_ID"; sleep 60; exit 1; }}
"""
LIMIT_S = 240

pytestmark = pytest.mark.timeout(1200)


def _submit(slurm: Slurm, folder: Path, faults: str) -> str:
    """A job as users write it: train, and be queued again after a failure."""
    settings = {"devices": 2, "strategy": "ddp"}
    command = ["srun", "--kill-on-bad-exit=1", sys.executable, PROGRAM]
    srun = shlex.join([*command, str(folder), json.dumps(settings)])
    changes = {"LIGHTNING_GAUDI_SIMULATE": "8", "PYTHONPATH": str(ROOT), "FAULTS": faults}
    return slurm.submit(JOB.format(srun=srun).strip(), environment(changes))


def test_a_requeued_job_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "slurm").mkdir()
    with running_slurm(tmp_path / "slurm") as slurm:
        job = _submit(slurm, folder, "0:1:7")
        slurm.wait(job, ["RUNNING"], 60)
        state = slurm.wait(job, ["PENDING", "FAILED", "COMPLETED"], LIMIT_S)
        said = (tmp_path / "slurm" / "output.txt").read_text()
        assert state == "PENDING", said
        # SLURM waits two minutes before it starts a job again; within a second of its end its
        # credential counts as revoked.
        slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")
        state = slurm.wait(job, ["COMPLETED", "FAILED"], LIMIT_S)
        said = (tmp_path / "slurm" / "output.txt").read_text()
    assert state == "COMPLETED", said
    assert "lightning-gaudi: SLURM has started this again; it goes on from" in said
    for rank in range(2):
        first, again = (
            json.loads((folder / f"start{start}-rank{rank}.json").read_text()) for start in (0, 1)
        )
        assert (first["first_step"], again["first_step"], again["last_step"]) == (0, 6, 12), said
    measured("a real SLURM: killed, requeued, from step 6")
