"""Who waits in the vendor's C code with the GIL held is not blamed; the rank that hangs is."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.started import program, started

TIMEOUT_S = 10.0
FOUND_S = TIMEOUT_S + 5

ENV = {"LIGHTNING_GAUDI_RELIABILITY": f"watchdog_timeout_s={TIMEOUT_S}"}


@pytest.mark.parametrize(
    ("how", "num_ranks", "rank", "launcher"),
    [
        ("hang", 2, 0, "ddp"),
        ("hang", 2, 1, "ddp"),
        ("hang", 4, 2, "ddp"),
        ("hang", 2, 1, "ddp_spawn"),
        ("hang", 2, 0, "torchrun"),
        ("spin", 2, 0, "ddp"),
        ("spin", 2, 1, "ddp"),
        ("spin", 4, 3, "ddp"),
    ],
)
def test_who_waits_with_the_gil_held_is_not_blamed(
    how: str,
    num_ranks: int,
    rank: int,
    launcher: str,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    """All others wait for the card; the one hangs asleep, or in C with the GIL held as well."""
    strategy = "ddp_spawn" if launcher == "ddp_spawn" else "ddp"
    command = program(tmp_path, devices=num_ranks, num_batches=4000, strategy=strategy)
    if launcher == "torchrun":
        run_module = ["-m", "torch.distributed.run", "--standalone"]
        command = [sys.executable, *run_module, f"--nproc-per-node={num_ranks}", *command[1:]]
    others = [other for other in range(num_ranks) if other != rank]
    trouble = [f"step:{rank}:{how}", *(f"step:{other}:card" for other in others)]
    with started(command, tmp_path, {**ENV, "TROUBLE": " ".join(trouble)}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(FOUND_S + 10)
        took = time.time() - began
        assert run.process.returncode != 0, run.output
        blamed = set(re.findall(r"ends: rank (\d+) hangs", run.output))
        assert blamed == {str(rank)}, run.output
        stack = run.output.partition(f"the Python stack of rank {rank}:")[2]
        assert re.search(r'program\.py", line \d+,? in trouble', stack), run.output
        _, _, account = run.output.partition("where every rank stood:")
        waits = "synchronize.*without letting Python run, in what waits"
        assert re.search(rf"ranks? {_names(others)} stood in .*{waits}", account), run.output
        assert took < FOUND_S, f"{took:.1f} s:\n{run.output}"
    told = f"rank {rank} of {num_ranks}, {how}, {launcher}, the others hold the GIL"
    measured(f"{told}: named, all gone in {took:.1f} s")


def _names(ranks: list[int]) -> str:
    runs = {(0, 1, 3): "0, 1, 3", (0, 1, 2): "0 to 2"}
    return runs.get(tuple(ranks), ", ".join(map(str, ranks)))


def test_a_long_compilation_is_no_hang(tmp_path: Path, measured: Callable[[str], None]) -> None:
    """One rank computes in C for twice the timeout, with the GIL held, while the other waits."""
    command = program(tmp_path, devices=2, num_batches=8)
    env = {**ENV, "TROUBLE": "step:1:compile", "LATE_S": str(2 * TIMEOUT_S)}
    with started(command, tmp_path, env) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(200)
        took = time.time() - began
        assert run.process.returncode == 0, run.output
        assert took > 1.5 * TIMEOUT_S, run.output
    measured(f"rank 1 of 2 compiles for {2 * TIMEOUT_S:.0f} s: goes on")


def test_where_all_wait_nobody_is_blamed(tmp_path: Path, measured: Callable[[str], None]) -> None:
    """Both ranks wait in C with the GIL held, which nobody can tell from a card that is broken."""
    command = program(tmp_path, devices=2, num_batches=4000)
    with started(command, tmp_path, {**ENV, "TROUBLE": "step:0:spin step:1:spin"}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(FOUND_S + 10)
        took = time.time() - began
        assert "no rank goes on, and none is behind" in run.output, run.output
        assert took < FOUND_S, f"{took:.1f} s:\n{run.output}"
    measured(f"2 ranks in C with the GIL held: said, all gone in {took:.1f} s")
