"""Ray Train and Ray Tune run Lightning on HPUs as their documents have it for other devices."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from tests.launch.started import started

pytest.importorskip("ray", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent
CARDS = {"LIGHTNING_GAUDI_SIMULATE": "2", "RAY_DEDUP_LOGS": "0"}


def _run(folder: Path, program: str, *arguments: str) -> str:
    # Its sockets lie below it, and a path of a socket has at most 107 characters.
    env = {**CARDS, "RAY_TMPDIR": f"/tmp/ray{os.getpid()}"}
    command = [sys.executable, str(FOLDER / program), *arguments]
    with started(command, folder, env) as run:
        assert run.wait(400) == 0, run.output[-6000:]
        return run.output


def _losses(folder: Path, rank: int) -> list[list[str]]:
    return [line.split() for line in (folder / f"losses{rank}").read_text().splitlines()]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed"])
def test_a_killed_worker_is_started_again_and_goes_on_to_the_same_losses(
    strategy: str, tmp_path: Path
) -> None:
    if strategy == "deepspeed":
        pytest.importorskip("deepspeed")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        _run(folder, "ray_program.py", strategy, str(folder), "yes" if folder is killed else "no")
        cards = [(folder / f"card{rank}").read_text().split() for rank in range(2)]
        assert {card for card, _ in cards} == {"0", "1"}
        assert {world_size for _, world_size in cards} == {"2"}
    assert (killed / "killed").exists()
    for rank in range(2):
        expected = dict(_losses(whole, rank))
        assert len(expected) == 16
        losses = _losses(killed, rank)
        assert len(losses) > 16
        assert all(loss == expected[step] for step, loss in losses)
        assert dict(losses).keys() == expected.keys()


@pytest.mark.parametrize(("num_trials", "scheduler"), [(4, "fifo"), (8, "asha")])
def test_trials_never_share_a_card(num_trials: int, scheduler: str, tmp_path: Path) -> None:
    output = _run(tmp_path, "ray_trials.py", str(tmp_path), str(num_trials), scheduler)
    assert f"errors: 0 of {num_trials}" in output
    trials = [json.loads(path.read_text()) for path in tmp_path.glob("trial*.json")]
    assert len(trials) == num_trials or scheduler == "asha"  # which ends some early
    assert {trial["card"] for trial in trials} == {"0", "1"}
    for card in ("0", "1"):
        times = sorted((t["begun"], t["ended"]) for t in trials if t["card"] == card)
        assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(times))
