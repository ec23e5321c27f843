"""A rank that hangs is named with its Python stack within the timeout + 5 s, and all ranks end."""

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
    ("how", "num_ranks", "rank", "strategy"),
    [
        ("hang", 2, 0, "ddp"),
        ("hang", 2, 1, "ddp"),
        ("hang", 4, 2, "ddp"),
        ("hang", 2, 1, "ddp_spawn"),
        ("hang", 2, 1, "fsdp"),
        ("spin", 2, 0, "ddp"),
        ("spin", 2, 1, "ddp"),
        ("SIGSTOP", 2, 0, "ddp"),
        ("SIGSTOP", 2, 1, "ddp"),
        ("SIGSTOP", 4, 3, "ddp"),
    ],
)
def test_a_rank_that_hangs_is_named_with_its_stack(
    how: str,
    num_ranks: int,
    rank: int,
    strategy: str,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    """Asleep; in code that lets no thread of Python run; and stopped."""
    command = program(tmp_path, devices=num_ranks, num_batches=4000, strategy=strategy)
    with started(command, tmp_path, {**ENV, "TROUBLE": f"step:{rank}:{how}"}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(FOUND_S - (time.time() - began))
        took = time.time() - began
        assert run.process.returncode != 0, run.output
        where = r"silent for \d+ s" if how != "hang" else r"for \d+ s in step 4, forward"
        named = rf"\[rank: (\d+)\] ends: rank {rank} hangs: it is {where}"
        tellers = {int(each) for each in re.findall(named, run.output)}
        assert tellers >= set(range(num_ranks)) - {rank}, run.output
        stack = run.output.partition(f"the Python stack of rank {rank}:")[2]
        assert re.search(r'program\.py", line \d+,? in trouble', stack), run.output
    measured(f"rank {rank} of {num_ranks}, {how}, {strategy}: named, all gone in {took:.1f} s")


def test_under_torchrun_a_rank_that_hangs_is_named(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [*launcher, *program(tmp_path, devices=2, num_batches=4000)[1:]]
    with started(command, tmp_path, {**ENV, "TROUBLE": "step:0:SIGSTOP"}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(FOUND_S - (time.time() - began))
        took = time.time() - began
        assert run.process.returncode != 0
        assert "[rank: 1] ends: rank 0 hangs: it is silent" in run.output, run.output
    measured(f"rank 0 of 2, SIGSTOP, torchrun: named, all gone in {took:.1f} s")


@pytest.mark.parametrize("place", ["save", "validation"])
def test_what_takes_long_on_one_rank_is_no_hang(place: str, tmp_path: Path) -> None:
    """Rank 0 saves, or validates, for twice the timeout, while the others wait for it."""
    command = program(tmp_path, devices=2, num_batches=8, save_every=4, validates=True)
    env = {**ENV, "TROUBLE": f"{place}:0:late", "LATE_S": str(2 * TIMEOUT_S)}
    with started(command, tmp_path, env) as run:
        run.wait_for_trouble(300)
        run.wait_for_all_to_end(120)
        assert run.process.returncode == 0, run.output


def test_switched_off_it_ends_nothing(tmp_path: Path) -> None:
    command = program(tmp_path, devices=2, num_batches=8)
    off = "watchdog=off,watchdog_timeout_s=3"
    env = {"LIGHTNING_GAUDI_RELIABILITY": off, "TROUBLE": "step:0:late", "LATE_S": "12"}
    with started(command, tmp_path, env) as run:
        run.wait_for_all_to_end(300)
        assert run.process.returncode == 0, run.output
