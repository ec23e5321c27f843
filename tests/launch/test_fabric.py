"""Fabric's ranks are started and end as the Trainer's are; its loop is outside of its launcher."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.launch.started import PROGRAM, found, program, started
from tests.launch.test_failures import END_S

FABRIC = str(PROGRAM.with_name("fabric_program.py"))


def _command(folder: Path, **settings: object) -> list[str]:
    return [sys.executable, FABRIC, *program(folder, **settings)[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_fabric_trains_on_the_cards_it_was_given(strategy: str, tmp_path: Path) -> None:
    with started(_command(tmp_path, devices=[3, 6], strategy=strategy), tmp_path) as run:
        assert run.wait() == 0, run.output
    ranks = found(tmp_path)
    assert [rank["module"] for rank in ranks] == ["3", "6"]
    assert ranks[0]["weights"] == ranks[1]["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_a_rank_of_fabric_that_raises_ends_all(strategy: str, rank: int, tmp_path: Path) -> None:
    env = {"TROUBLE": f"step:{rank}:raise step:{1 - rank}:hang"}
    with started(_command(tmp_path, devices=2, strategy=strategy), tmp_path, env) as run:
        began = run.wait_for_trouble()
        run.wait_for_all_to_end(END_S - (time.time() - began))
        assert run.process.returncode == 1, run.output
        assert "ValueError: trouble at step on purpose" in run.output
        if strategy == "ddp_spawn":
            assert f"-- Process {rank} terminated with the following error:" in run.output
        elif rank == 1:
            assert re.search(r"local rank 1 \(process \d+\) failed with", run.output), run.output
