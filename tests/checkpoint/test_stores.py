"""Fits in pods that are killed and made anew go on to the same losses, on a disk and in a store."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch.started import started

PROGRAM = Path(__file__).parent / "stored_program.py"
JOB = {"LIGHTNING_GAUDI_JOB_ID": "fit-1", "LIGHTNING_GAUDI_SIMULATE": "1"}
MOMENTS_S = (0.02, 0.1, 0.17, 0.23, 0.31, 0.38, 0.44, 0.53, 0.61, 0.7)
"""After the first step of a pod. A step takes 0.05 s, and every second one saves."""


def _run(
    folder: Path,
    root: str,
    env: dict[str, str],
    kill_after_s: float | None = None,
    strategy: str = "auto",
) -> Any:
    """Runs a pod; kills it so long after its first step, unless it ends before."""
    losses = folder / "losses"
    before = losses.stat().st_size if losses.exists() else 0
    command = [sys.executable, str(PROGRAM), root, str(folder), strategy]
    with started(command, folder, env) as run:
        if kill_after_s is not None:
            end = time.monotonic() + 120
            while run.process.poll() is None and time.monotonic() < end:
                if losses.exists() and losses.stat().st_size > before:
                    time.sleep(kill_after_s)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(run.process.pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
        run.wait()
        return run.output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("store", "strategy"),
    [("disk", "auto"), ("bucket", "auto"), ("bucket", "deepspeed_stage_2"), ("bucket", "fsdp")],
)
def test_pods_that_are_killed_at_ten_moments_go_on(
    store: str, strategy: str, tmp_path: Path, bucket: dict[str, str]
) -> None:
    env = JOB | bucket
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    _run(whole, str(whole / "root"), env, strategy=strategy)
    expected = dict(line.split() for line in (whole / "losses").read_text().splitlines())
    assert len(expected) == 30

    root = f"s3://bucket/{strategy}" if store == "bucket" else str(killed / "root")
    slowness = 4 if store == "bucket" else 1  # a save takes that much longer
    said = [_run(killed, root, env, slowness * moment, strategy) for moment in MOMENTS_S]
    while not (killed / "done").exists():
        said.append(_run(killed, root, env, strategy=strategy))
    steps = [line.split() for line in (killed / "losses").read_text().splitlines()]
    assert all(loss == expected[step] for step, loss in steps)
    assert {step for step, _ in steps} == expected.keys()
    # No pod begins at the first step once there is a checkpoint.
    assert sum("it goes on from" in each for each in said) >= 5
    assert len(steps) < 30 + 10 * 30 / 3


@pytest.mark.slow
def test_a_bucket_that_cannot_be_written_is_said_before_the_first_step(
    tmp_path: Path, bucket: dict[str, str]
) -> None:
    output = _run(tmp_path, "s3://no-such-bucket/run", JOB | bucket)
    assert "s3://no-such-bucket/run/checkpoints cannot be written (FileNotFoundError" in output
    assert not (tmp_path / "losses").exists()


@pytest.mark.slow
def test_a_bucket_without_rights_is_said_before_the_first_step(
    tmp_path: Path, read_only_bucket: dict[str, str]
) -> None:
    output = _run(tmp_path, "s3://bucket/run", JOB | read_only_bucket)
    assert "s3://bucket/run/checkpoints cannot be written (PermissionError: " in output
    assert not (tmp_path / "losses").exists()
    nobody = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "x"}
    output = _run(tmp_path, "s3://bucket/run", JOB | read_only_bucket | nobody)
    assert "PermissionError: The AWS Access Key Id" in output  # from a look of Lightning's own
    assert not (tmp_path / "losses").exists()
