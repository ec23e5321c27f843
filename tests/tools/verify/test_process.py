"""A part that crashes, hangs or raises costs nothing but itself."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from lightning_gaudi.measured_card import read
from lightning_gaudi.simulator.settings import SERVER, SIMULATE
from lightning_gaudi.tools.verify import run
from lightning_gaudi.tools.verify.process import Outcome, Worker
from tests.helpers.network import INTERFACE, two_hosts
from tests.helpers.process import run as run_program

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "verify"]


def test_what_fails_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATE, "2")
    monkeypatch.setenv(SERVER, f"verify-{uuid.uuid4()}")
    with closing(Worker("eager", module="tests.tools.verify.parts_that_fail")) as worker:
        problems = {}
        for part in ("crash", "crash_worker", "hang", "fail"):
            rows = list(worker.run(part, {}, limit_s=5 if part == "hang" else 120))
            problems[part] = len(rows), worker.outcome.problem
        [present] = worker.run("presence", {}, limit_s=120)
        rows = list(worker.run("fail", {}, num_ranks=2, limit_s=120))
        assert "RuntimeError: rank" in worker.outcome.problem
    assert present["device_name"] == "GAUDI2"
    assert problems == {
        "crash": (1, "crashed (SIGSEGV)"),
        "crash_worker": (1, "crashed (SIGKILL)"),
        "hang": (1, "hung, and was ended"),
        "fail": (0, "failed: RuntimeError: rank 0 fails"),
    }


def test_what_a_rank_raised_is_told_and_not_that_the_others_were_killed_for_it() -> None:
    assert Outcome([-9, 1], said="RuntimeError: rank 1\n").problem == "failed: RuntimeError: rank 1"
    assert Outcome([-11, 1], said="RuntimeError: rank 1").problem == "crashed (SIGSEGV)"
    assert Outcome([-9, 0]).problem == "crashed (SIGKILL)"


def test_a_machine_without_a_card_says_so() -> None:
    result = run_program(COMMAND, env={SIMULATE: None}, check=False)
    assert result.returncode == 2
    assert "cannot verify: no Gaudi here: the vendor's package" in result.stderr
    assert "lightning-gaudi simulate --cards 2 -- lightning-gaudi verify" in result.stderr


def test_a_card_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATE, "1")
    monkeypatch.setenv(SERVER, f"verify-{uuid.uuid4()}")
    source = "import torch, time; torch.empty(1, device='hpu'); print('held', flush=True)"
    command = [sys.executable, "-c", f"{source}; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(run.VerifyError, match="cannot be taken; another program has it"):
                run.verify(run.Options())
        finally:
            os.kill(holder.pid, signal.SIGKILL)


def test_hccl_is_measured_between_hosts(tmp_path: Path) -> None:
    """Each has a name, an address and a card of its own; the launcher reaches the other one."""
    with two_hosts() as hosts:
        launcher, output = tmp_path / "launch", tmp_path / "card.json"
        ranks = [
            f"export RANK={host} GROUP_RANK={host} NODE_RANK={host} {SERVER}={name}; {words}"
            for host, (name, words) in enumerate(
                zip(hosts.names, ('"$@"', f'{shlex.join(hosts.command(1))} "$@"'), strict=True)
            )
        ]
        launcher.write_text(
            "#!/bin/sh\n"
            "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 NNODES=2\n"
            f"({ranks[1]}) &\n({ranks[0]})\nwait\n"
        )
        launcher.chmod(0o755)
        env = {SIMULATE: "1", "GLOO_SOCKET_IFNAME": INTERFACE, "MASTER_ADDR": hosts.addresses[0]}
        command = [*COMMAND, "--quick", "--output", str(output), "--hosts", "--", str(launcher)]
        result = run_program([*hosts.command(0), *command], env=env)
        assert "2 cards: all_reduce" in result.stdout
        found = json.loads(output.read_text())
        assert (found["hosts"], found["num_cards"]) == (2, 2)
        rows = found["figures"]["collectives"]
        assert {row["collective"] for row in rows} == {
            "all_reduce", "all_gather", "reduce_scatter",
        }  # fmt: skip
        assert all(row["num_hosts"] == 2 and row["bytes_per_s"] > 0 for row in rows)


def test_hccl_is_measured_on_what_a_launcher_starts(tmp_path: Path) -> None:
    launcher = tmp_path / "launch"
    launcher.write_text(
        "#!/bin/sh\n"
        "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2\n"
        'RANK=1 LOCAL_RANK=1 "$@" &\n'
        'RANK=0 LOCAL_RANK=0 "$@"\n'
        "wait\n"
    )
    launcher.chmod(0o755)
    env = {SIMULATE: "2", SERVER: f"verify-{uuid.uuid4()}", "MASTER_ADDR": "127.0.0.1"}
    output = tmp_path / "card.json"
    command = [*COMMAND, "--quick", "--output", str(output), "--hosts", "--", str(launcher)]
    result = run_program(command, env=env)
    assert "2 cards: all_reduce" in result.stdout
    assert '"collectives"' in output.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_it_costs_one_part(tmp_path: Path, number: int) -> None:
    output = tmp_path / "card.json"
    env = {**os.environ, SIMULATE: "1", SERVER: f"verify-{uuid.uuid4()}"}
    command = [*COMMAND, "--only", "memory,compile", "--output", str(output)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "compile in" in line:
                break
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 128 + number
    assert f"what was measured until now is in {output}" in rest
    kept = read(output)
    assert kept.memory is not None
    assert json.loads(output.read_text())["parts"] == ["memory"]
