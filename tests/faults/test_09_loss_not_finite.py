"""A loss of NaN or inf ends all ranks within a log interval, and no checkpoint of it is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.launch.started import program, started

BAD_STEP, LOG_STEP = 6, 10


@pytest.mark.parametrize(("value", "save_every", "ends"), [("nan", 4, 8), ("inf", 100, 10)])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_bad_loss_ends_the_run_within_a_log_interval(
    num_ranks: int,
    value: str,
    save_every: int,
    ends: int,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    """On the last rank alone; at the end of the interval, or where a checkpoint is due before."""
    rank = num_ranks - 1
    command = program(
        tmp_path,
        devices=num_ranks,
        num_batches=200,
        log_every_n_steps=LOG_STEP,
        save_every=save_every,
        default_root_dir=str(tmp_path),
    )
    with started(command, tmp_path, {"TROUBLE": f"loss:{rank}:{value}"}) as run:
        run.wait_for_trouble(300)
        run.wait_for_all_to_end(120)
        assert run.process.returncode == 1, run.output
        said = f"LossNotFiniteError: The loss of step {BAD_STEP} on rank {rank} is {value}"
        assert run.output.count(f"{said}: the run ends after step {ends}") >= num_ranks
    saved = [torch.load(path, weights_only=True)["global_step"] for path in _checkpoints(tmp_path)]
    assert saved == list(range(save_every, BAD_STEP, save_every))
    measured(f"{value} at step 6 of 1 of {num_ranks} ranks: all ended after step {ends}")


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.ckpt"))


def test_a_fit_shorter_than_an_interval_ends_so_too(tmp_path: Path) -> None:
    command = program(tmp_path, devices=1, num_batches=8)
    with started(command, tmp_path, {"TROUBLE": "loss:0:nan"}) as run:
        run.wait_for_all_to_end(120)
        assert run.process.returncode == 1, run.output
        assert "The loss of step 6 on rank 0 is nan: the run ends after step" in run.output
