"""Programs whose ranks are started by a launcher: all are counted, and end after their steps."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.process import run

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
PORT = "PORT"
PYTHON = str(Path(sys.executable).parent)
LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc_per_node=2", "--master_port", PORT],
    "accelerate": ["accelerate", "launch", "--num_processes=2", "--main_process_port", PORT],
    "deepspeed": ["deepspeed", "--num_gpus=2", "--no_local_rank", "--master_port", PORT],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_that_a_launcher_starts_are_audited(launcher: str, tmp_path: Path) -> None:
    where = shutil.which(launcher, path=PYTHON) or shutil.which(launcher)
    if where is None:
        pytest.skip(f"needs {launcher} on the PATH")
    port, report = str(free_port()), tmp_path / "report.json"
    words = [port if word == PORT else word for word in LAUNCHERS[launcher]]
    audit = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "audit",
        "--cards",
        "2",
        "--steps",
        "5",
    ]
    result = run(
        [*audit, "--json", str(report), "--", where, *words[1:], str(PROGRAM), port],
        env={"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_COMPILE": "none"},
        check=False,
        timeout=280,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "ran to its end" not in result.stdout
    found = json.loads(report.read_text())
    assert [(rank["rank"], rank["world_size"]) for rank in found["ranks"]] == [(0, 2), (1, 2)]
    assert [(rank["is_ended"], len(rank["steps"])) for rank in found["ranks"]] == [(True, 5)] * 2
    [waits] = [each for each in found["findings"] if each["rule"] == "item-waits"]
    line = PROGRAM.read_text().splitlines().index("    loss.item()  # item-waits") + 1
    assert (waits["file"], waits["line"], waits["ranks"]) == (str(PROGRAM), line, [0, 1])
