"""When a rank is killed all end within 15 s, and the rank and the signal are named."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.started import program, started

END_S = 15.0


@pytest.mark.parametrize(
    ("num_ranks", "rank", "launcher"),
    [
        (2, 0, "script"),
        (2, 1, "script"),
        (4, 0, "script"),
        (4, 2, "script"),
        (2, 0, "ddp_spawn"),
        (2, 1, "torchrun"),
    ],
)
def test_a_rank_that_is_killed_is_named_and_all_end(
    num_ranks: int, rank: int, launcher: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    strategy = "ddp_spawn" if launcher == "ddp_spawn" else "ddp"
    command = program(tmp_path, devices=num_ranks, num_batches=4000, strategy=strategy)
    if launcher == "torchrun":
        run_module = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*run_module, f"--nproc-per-node={num_ranks}", *command[1:]]
    with started(command, tmp_path, {"TROUBLE": f"step:{rank}:SIGKILL"}) as run:
        began = run.wait_for_trouble(300)
        run.wait_for_all_to_end(END_S - (time.time() - began))
        took = time.time() - began
        assert run.process.returncode != 0, run.output
        by_watchdog = rf"rank {rank} \(process \d+\) (was killed by SIGKILL|died, as by SIGKILL)"
        by_launcher = rf"local rank {rank} \(process \d+\) was killed by SIGKILL"
        by_torch = rf"process {rank} terminated with signal SIGKILL|Signal 9 \(SIGKILL\)"
        assert re.search(f"{by_watchdog}|{by_launcher}|{by_torch}", run.output), run.output
    measured(f"rank {rank} of {num_ranks}, {launcher}: named, all gone in {took:.1f} s")
