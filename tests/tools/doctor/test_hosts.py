"""All servers of a job, over real launchers and over scripts that stand for broken ones."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi.tools.doctor.findings import Report, ok
from lightning_gaudi.tools.doctor.wire_format import cut
from tests.helpers.process import run
from tests.helpers.slurm import running_slurm

DOCTOR = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "doctor"]
UNSET = {"LIGHTNING_GAUDI_SIMULATE": None, "MASTER_PORT": None, "GC_KERNEL_PATH": None}
TIMEOUT_S = "100"


def _hosts(launcher: Sequence[str], timeout_s: str = TIMEOUT_S) -> tuple[int, dict[str, Any], str]:
    command = [*DOCTOR, "--json", "--hosts", "--timeout", timeout_s, "--", *launcher]
    result = run(command, env=UNSET, check=False)
    return result.returncode, json.loads(result.stdout), result.stderr


def _of_hosts(report: dict[str, Any]) -> list[dict[str, str]]:
    return [each for each in report["findings"] if each["area"] == "hosts"]


def _script(folder: Path, text: str) -> str:
    path = folder / "launch"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="install Open MPI (Debian: openmpi-bin)"
)
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")


@needs_mpirun
def test_ranks_of_mpirun_are_compared() -> None:
    status, report, _ = _hosts([*MPIRUN, "--tag-output", "-np", "2"])
    (found,) = _of_hosts(report)
    assert found["level"] == "ok"
    assert found["found"].startswith("2 processes on ")
    assert status == report["status"]
    assert {"python", "cards"} & {each["area"] for each in report["findings"]}
    assert report["facts"]["package torch"]


@needs_mpirun
def test_a_variable_that_mpirun_hands_to_one_rank_is_an_error() -> None:
    one = ["-np", "1", "-x", "GC_KERNEL_PATH=/x", "{}"]
    other = ["-np", "1", "bash", "-c", "exec {}"]
    status, report, _ = _hosts([*MPIRUN, *one, ":", *other])
    (found,) = _of_hosts(report)
    assert (status, found["level"]) == (1, "error")
    assert "GC_KERNEL_PATH differs: /x on rank 0 on " in found["found"]
    assert "not set on rank 1 on " in found["found"]


def _answers(folder: Path, *messages: dict[str, Any]) -> str:
    """A script that prints what processes answered, whoever asks, and hangs."""
    lines = [line for index, each in enumerate(messages) for line in cut("ASKED", f"{index}", each)]
    (folder / "answers").write_text("\n".join(lines) + "\n")
    return _script(
        folder,
        f"""
        echo $$ > {folder}/pid
        asked=$(sed 's/.*--answer //; s/ .*//' <<< "$*")
        sed "s/ASKED/$asked/" {folder}/answers
        exec sleep 1000
        """,
    )


def _message(rank: int, report: Report | None) -> dict[str, Any]:
    about = {"sender": f"gaudi{rank}", "host": f"gaudi{rank}", "rank": rank, "size": 3}
    return about | {"is_first": True, "report": report and report.as_json()}


@pytest.mark.slow
def test_ranks_that_hang_are_named_with_what_was_tried(tmp_path: Path) -> None:
    done = Report([ok("python", "3.11")], {"python": "3.11"})
    hello, whole, other = _message(0, None), _message(0, done), _message(1, None)
    launcher = _answers(tmp_path, hello, whole, other)
    status, report, _ = _hosts([launcher, "-H", "gaudi0,gaudi1,gaudi2"], timeout_s="5")
    began, missing, *others = report["findings"]
    tried = f"within 5 s of `{launcher} -H gaudi0,gaudi1,gaudi2`"
    assert (status, began["level"], missing["level"]) == (1, "error", "error")
    assert began["found"] == f"rank 1 on gaudi1 began, and did not answer {tried}"
    assert missing["found"] == f"host gaudi2 and rank 2 of 3 did not answer {tried}"
    assert "lightning-gaudi doctor" in began["fix"]
    assert "python" in [each["area"] for each in others]  # what rank 0 found is kept
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.slow
def test_hosts_may_have_other_names_for_a_launcher(tmp_path: Path) -> None:
    done = Report([ok("python", "3.11")], {"python": "3.11"})
    messages = [_message(rank, done) | {"size": 2} for rank in range(2)]
    launcher = _answers(tmp_path, *messages)
    status, report, _ = _hosts([launcher, "-H", "ib-gaudi0,ib-gaudi1"])
    (found,) = _of_hosts(report)
    assert (status, found["level"]) == (0, "ok")
    assert found["found"].startswith("2 processes on gaudi0, gaudi1 have the same")


@pytest.mark.slow
def test_a_real_rank_answers_and_one_that_hangs_is_named(tmp_path: Path) -> None:
    launcher = _script(
        tmp_path,
        """
        export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0
        OMPI_COMM_WORLD_RANK=0 "$@"
        OMPI_COMM_WORLD_RANK=1 sleep 1000
        """,
    )
    status, report, _ = _hosts([launcher], timeout_s="40")
    found = _of_hosts(report)[0]
    assert (status, found["level"]) == (1, "error")
    assert found["found"] == f"rank 1 of 2 did not answer within 40 s of `{launcher}`"
    assert "python" in [each["area"] for each in report["findings"]]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["exec", ""])
def test_a_driver_that_hangs_is_named_and_nothing_is_left(tmp_path: Path, shell: str) -> None:
    smi = tmp_path / "bin" / "hl-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/bash\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    smi.chmod(0o755)
    launcher = _script(tmp_path, f'export PATH={smi.parent}:$PATH; {shell} "$@"; exit')
    status, report, _ = _hosts([launcher], timeout_s="20")
    (found,) = report["findings"]
    assert status == 1
    assert found["found"].startswith(f"{os.uname().nodename} began, and did not answer within 20")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_host_that_the_launcher_does_not_reach_is_named(tmp_path: Path) -> None:
    launcher = _script(tmp_path, "echo ssh: Could not resolve hostname gaudi2 >&2; exit 3")
    status, report, said = _hosts([launcher, "--host", "gaudi2"])
    (found,) = report["findings"]
    assert status == 1
    assert found["found"].startswith("host gaudi2 did not answer before")
    assert "ended with status 3 (ssh: Could not resolve hostname gaudi2)" in found["found"]
    assert "Could not resolve" in said


def test_a_launcher_that_starts_nothing_and_one_that_fails_in_the_end(tmp_path: Path) -> None:
    _, report, _ = _hosts(["true"])
    assert report["findings"][0]["found"] == "nobody answered before `true` ended with status 0"
    _, report, _ = _hosts([_script(tmp_path, '"$@"; exit 7')])
    found = _of_hosts(report)[0]
    assert found["level"] == "warning"
    assert "all answered, but " in found["found"]
    assert "ended with status 7" in found["found"]


@pytest.mark.slow
def test_tasks_of_srun_are_compared(tmp_path: Path) -> None:
    with running_slurm(tmp_path) as slurm:
        launcher = ["srun", "--nodes=1", "--ntasks=2", "--overcommit", "--label", "--export=ALL"]
        command = [*DOCTOR, "--json", "--hosts", "--timeout", TIMEOUT_S, "--", *launcher]
        result = run(command, env=UNSET | slurm.env, check=False)
    report = json.loads(result.stdout)
    (found,) = _of_hosts(report)
    assert found["found"].startswith("2 processes on "), result.stderr
