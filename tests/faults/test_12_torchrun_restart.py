"""Row 12: torchrun starts all ranks again after one was killed, and training goes on by itself."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ports import free_port
from tests.launch.started import ROOT, started

PROGRAM = str(ROOT / "tests" / "faults" / "restartable.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
LIMIT_S = 400

pytestmark = pytest.mark.timeout(1200)


def _run(
    folder: Path, torchruns: Sequence[Sequence[str]], faults: str, **settings: Any
) -> tuple[str, float]:
    """Run all nodes to their end, which must be a good one; what they said, when the first died."""
    command = [PROGRAM, str(folder), json.dumps(settings)]
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(
                started([*TORCHRUN, *torchrun, *command], folder, {"FAULTS": faults})
            )
            for torchrun in torchruns
        ]
        for run in runs:
            assert run.wait(LIMIT_S) == 0, run.output
        output = "".join(run.output for run in runs)
    killed = re.search(r"trouble at ([\d.]+)", output)
    assert killed is not None, output
    return output, float(killed[1])


def _starts(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank found at each of its starts that came to training."""
    paths = sorted(folder.glob(f"start*-rank{rank}.json"))
    return [json.loads(path.read_text()) for path in paths]


CASES = {
    "ddp": (2, "--standalone", "0:1:7 1:0:10"),
    "deepspeed": (2, "--standalone", "0:0:7"),
    "fsdp": (2, "--standalone", "0:1:7"),
    "hpu_ddp": (4, "--master-port", "0:2:7"),
}
"""By strategy: the ranks, how torchrun has them meet, and which of them dies when."""


@pytest.mark.parametrize("strategy", CASES)
def test_all_ranks_go_on_from_the_newest_checkpoint(
    strategy: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    num_ranks, meeting, faults = CASES[strategy]
    options = [f"--nproc-per-node={num_ranks}", f"--max-restarts={len(faults.split())}", meeting]
    if meeting == "--master-port":
        options.append(str(free_port()))
    output, killed = _run(tmp_path, [options], faults, devices=num_ranks, strategy=strategy)
    expected = [0, 6, 9][: len(faults.split()) + 1]
    for rank in range(num_ranks):
        found = _starts(tmp_path, rank)
        assert [each["first_step"] for each in found] == expected, output
        assert found[-1]["last_step"] == 12
    assert output.count("torchrun has started this again; it goes on from") == len(expected) - 1
    took = _starts(tmp_path, 0)[1]["at"] - killed
    measured(f"{strategy}, {num_ranks} ranks: from step {expected[1:]}, {took:.0f} s after a kill")


def test_all_nodes_go_on_though_one_alone_has_counted_a_restart(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    endpoint = f"localhost:{free_port()!s}"
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=restarted"]
    torchruns = [
        ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--max-restarts=2", *meeting]
        for node in range(2)
    ]
    output, killed = _run(tmp_path, torchruns, "0:1:7", devices=1, num_nodes=2)
    # The node whose rank was not killed may see it die of that, or be told to start again.
    last = [_starts(tmp_path, rank)[-1] for rank in range(2)]
    assert [each["first_step"] for each in last] == [6, 6], output
    assert [each["last_step"] for each in last] == [12, 12]
    measured(f"2 nodes: from step 6, {max(each['at'] for each in last) - killed:.0f} s after")
