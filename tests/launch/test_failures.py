"""A rank that fails says so with its number, the others end soon, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.launch.started import Started, found, program, started

END_S = 15.0
"""How long the other ranks may still run."""

SLOW = {"SLOW": "1"}


def _fails(folder: Path, trouble: str, within_s: float = END_S, **settings: object) -> str:
    """What a program with trouble says; it ends soon, with a status that is not 0, and entirely."""
    command = program(folder, **{"devices": 2, **settings})
    with started(command, folder, {"TROUBLE": trouble}) as run:
        began = run.wait_for_trouble()
        run.wait_for_all_to_end(within_s - (time.time() - began))
        assert run.process.returncode != 0, run.output
        assert not list(folder.glob("rank*.json")), run.output
        return run.output


NOTICED = r"rank 1 \(process \d+\) "
"""How whoever notices it first begins: the process that started the rank, or another rank."""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["import", "main", "fit", "setup", "step"])
def test_a_rank_that_raises_ends_all(place: str, tmp_path: Path) -> None:
    output = _fails(tmp_path, f"{place}:1:raise")
    assert f"ValueError: trouble at {place} on purpose" in output
    assert re.search(NOTICED + "(failed|ended) with exit status 1", output), output
    if place in ("setup", "step"):
        assert f"lightning-gaudi: [rank: 1] ValueError: trouble at {place} on purpose" in output


@pytest.mark.slow
@pytest.mark.parametrize("place", ["import", "setup", "step"])
def test_a_rank_that_is_killed_ends_all(place: str, tmp_path: Path) -> None:
    output = _fails(tmp_path, f"{place}:1:SIGKILL")
    assert re.search(NOTICED + "was killed by SIGKILL", output), output


@pytest.mark.slow
@pytest.mark.parametrize("place", ["setup", "step"])
def test_rank_0_that_raises_ends_all(place: str, tmp_path: Path) -> None:
    output = _fails(tmp_path, f"{place}:0:raise")
    assert f"lightning-gaudi: [rank: 0] ValueError: trouble at {place} on purpose" in output


@pytest.mark.slow
def test_rank_0_fails_when_another_does_not_come_in_time(tmp_path: Path) -> None:
    """DDPStrategy(timeout=...) holds for the meeting too; the late rank is ended then."""
    # Long enough for a busy machine to bring rank 1 to where it hangs, before rank 0 gives up.
    output = _fails(tmp_path, "main:1:hang", within_s=30 + END_S, timeout_s=30)
    assert "lightning-gaudi: [rank: 0] DistStoreError: Timed out after" in output, output


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_a_collective_ends_all(tmp_path: Path) -> None:
    # Rank 0 may come to the collective as much later as it would wait there.
    output = _fails(tmp_path, "setup:1:hang", within_s=2 * 20 + END_S, timeout_s=20)
    assert "lightning-gaudi: [rank: 0]" in output, output


@pytest.mark.slow
@pytest.mark.parametrize("other", ["main", "setup"])
def test_rank_0_that_is_killed_ends_all(other: str, tmp_path: Path) -> None:
    with started(program(tmp_path, devices=2), tmp_path, {"TROUBLE": f"{other}:1:hang"}) as run:
        run.wait_for_trouble()
        run.process.kill()
        run.wait_for_all_to_end(END_S)
        assert "local rank 1 ends because the process that started it died" in run.output


@pytest.mark.slow
def test_a_spawned_rank_that_raises_ends_all(tmp_path: Path) -> None:
    output = _fails(tmp_path, "step:1:raise", strategy="ddp_spawn")
    assert "-- Process 1 terminated with the following error:" in output
    assert "ValueError: trouble at step on purpose" in output


@pytest.mark.slow
def test_a_spawned_rank_that_is_killed_ends_a_rank_that_hangs(tmp_path: Path) -> None:
    output = _fails(tmp_path, "setup:1:SIGKILL setup:0:hang", strategy="ddp_spawn")
    assert "process 1 terminated with signal SIGKILL" in output


@pytest.mark.slow
def test_spawned_ranks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    env = {"TROUBLE": "setup:1:hang"}
    command = program(tmp_path, devices=2, strategy="ddp_spawn")
    with started(command, tmp_path, env) as run:
        run.wait_for_trouble()
        run.process.kill()
        run.wait_for_all_to_end(END_S)


def _training(run: Started) -> None:
    """Wait until both ranks are in the middle of training."""
    for rank in range(2):
        run.wait_for(f"step3-{rank}")


LONG = {"devices": 2, "num_batches": 4000}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
@pytest.mark.parametrize("whom", ["all", "main"])
def test_ctrl_c_ends_all(whom: str, strategy: str, tmp_path: Path) -> None:
    """At a terminal it reaches all processes; `kill -INT` only the main one."""
    with started(program(tmp_path, **LONG, strategy=strategy), tmp_path, SLOW) as run:
        _training(run)
        send = os.killpg if whom == "all" else os.kill
        send(run.process.pid, signal.SIGINT)
        run.wait_for_all_to_end(END_S)
        assert run.process.returncode == 130, run.output
        assert "Ctrl-C: the fit ends after this step. Again: at once." in run.output
        assert "Ctrl-C ended the fit after step" in run.output
        assert "failed with" not in run.output
        assert "SIGKILL" not in run.output


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_stop_before_the_same_step_when_one_gets_sigterm(
    rank: int, tmp_path: Path
) -> None:
    with started(program(tmp_path, **LONG), tmp_path, SLOW) as run:
        _training(run)
        os.kill(run.process.pid if rank == 0 else run.rank(1), signal.SIGTERM)
        run.wait_for_all_to_end(END_S)
        assert run.process.returncode == 143, run.output
        assert "failed with" not in run.output
    ranks = found(tmp_path)
    assert [rank["exception"] for rank in ranks] == ["SIGTERMException"] * 2
    assert ranks[0]["steps"] == ranks[1]["steps"] < 2000
    assert ranks[0]["weights"] == ranks[1]["weights"]


@pytest.mark.slow
def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = program(tmp_path, devices=2)
        with started(command, tmp_path, {"MASTER_PORT": str(port), "TROUBLE": "fit:0:none"}) as run:
            began = run.wait_for_trouble()
            run.wait_for_all_to_end(END_S - (time.time() - began))
            assert run.process.returncode == 1
            assert f"MASTER_PORT={port}, where rank 0 would wait" in run.output
            assert "in use by another program. Set MASTER_PORT to a free port" in run.output
