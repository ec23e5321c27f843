"""SIGTERM saves and ends with 143; SLURM's signal saves, requeues and ends, between two steps."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.launch.started import Started, program, started

LONG = {"num_batches": 4000, "enable_checkpointing": True}
END_S = 60.0


def _training(run: Started, num_ranks: int) -> None:
    for rank in range(num_ranks):
        run.wait_for(f"step3-{rank}", timeout=300)


def _settings(folder: Path, num_ranks: int, **more: object) -> dict[str, object]:
    return {**LONG, "devices": num_ranks, "default_root_dir": str(folder), **more}


def _check_saved(folder: Path, run: Started) -> int:
    """The one checkpoint, which is named to the user, and the step it was saved after."""
    (path,) = folder.rglob("*.ckpt")
    saved = torch.load(path, weights_only=True)
    step = int(saved["global_step"])
    assert f"SIGTERM ended the fit after step {step}. {path} has its state" in run.output
    assert saved["optimizer_states"][0]["state"][0]["step"] == step
    assert "failed with" not in run.output, run.output
    return step


def _end(run: Started, pid: int, signum: signal.Signals = signal.SIGTERM) -> float:
    began = time.monotonic()
    os.kill(pid, signum)
    run.wait_for_all_to_end(END_S)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("num_ranks", "rank", "strategy"),
    [(1, 0, "auto"), (2, 0, "ddp"), (2, 1, "ddp"), (4, 0, "ddp"), (2, 0, "ddp_spawn")],
)
def test_sigterm_saves_and_ends_with_143(
    num_ranks: int,
    rank: int,
    strategy: str,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    command = program(tmp_path, **_settings(tmp_path, num_ranks, strategy=strategy))
    with started(command, tmp_path, {"SLOW": "1", "LOCAL_RANK": None}) as run:
        _training(run, num_ranks)
        took = _end(run, run.process.pid if rank == 0 else run.rank(rank))
        assert run.process.returncode == 143, run.output
        _check_saved(tmp_path, run)
    measured(f"SIGTERM to 1 of {num_ranks}, {strategy}: saved, 143, {took:.1f} s")


def test_gradients_that_are_being_accumulated_are_not_lost(tmp_path: Path) -> None:
    settings = _settings(tmp_path, 1, accumulate_grad_batches=8)
    with started(program(tmp_path, **settings), tmp_path, {"SLOW": "1"}) as run:
        _training(run, 1)
        _end(run, run.process.pid)
        assert _check_saved(tmp_path, run) >= 1
        (path,) = tmp_path.rglob("*.ckpt")
    loop = torch.load(path, weights_only=True)["loops"]["fit_loop"]
    assert loop["epoch_loop.batch_progress"]["current"]["ready"] % 8 == 0


def test_under_torchrun_the_ranks_save_and_end_with_143(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """The status of torchrun itself is torch's: 1."""
    run_module = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command = [*run_module, "--standalone", *program(tmp_path, **_settings(tmp_path, 2))[1:]]
    with started(command, tmp_path, {"SLOW": "1"}) as run:
        _training(run, 2)
        took = _end(run, _rank(tmp_path, 1))
        assert run.process.returncode != 0
        _check_saved(tmp_path, run)
        assert re.search(r"exitcode\s*: 143", run.output), run.output
    measured(f"under torchrun: saved, 143, {took:.1f} s")


def _rank(folder: Path, rank: int) -> int:
    """The process of a rank, wherever torchrun has put it: each is in a session of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_text()
            variables = (process / "environ").read_text().split("\0")
            if str(folder) in command and f"RANK={rank}" in variables:
                return int(process.name)
    raise AssertionError(f"there is no rank {rank}")


def test_without_checkpoints_nothing_is_written_and_it_says_so(tmp_path: Path) -> None:
    settings = _settings(tmp_path, 1, enable_checkpointing=False)
    with started(program(tmp_path, **settings), tmp_path, {"SLOW": "1"}) as run:
        _training(run, 1)
        _end(run, run.process.pid)
        assert run.process.returncode == 143
        assert "No state was saved, since Trainer(enable_checkpointing=False)" in run.output
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_slurms_signal_saves_requeues_and_ends(
    num_ranks: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Beside a `scontrol` that writes down how it was called, and in the environment of a job."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    command = program(tmp_path, **_settings(tmp_path, num_ranks, num_nodes=1))
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLOW": "1",
        "SLURM_NTASKS": str(num_ranks),
        "SLURM_NTASKS_PER_NODE": str(num_ranks),
        "SLURM_NNODES": "1",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "4711",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "localhost",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
    }
    with started(command, tmp_path, {**job, **_task(0)}) as run:
        others = [
            started(command, tmp_path, {**job, **_task(rank)}) for rank in range(1, num_ranks)
        ]
        tasks = [run, *(other.__enter__() for other in others)]
        try:
            _training(run, num_ranks)
            began = time.monotonic()
            for task in tasks:  # as `--signal=SIGUSR1@90` does
                os.kill(task.process.pid, signal.SIGUSR1)
            for task in tasks:
                task.wait_for_all_to_end(END_S)
            took = time.monotonic() - began
            assert [task.process.returncode for task in tasks] == [143] * num_ranks, run.output
        finally:
            for other in others:
                other.__exit__(None, None, None)
        assert (tmp_path / "requeued").read_text().splitlines() == ["requeue 4711"]
        saved = torch.load(tmp_path / "hpc_ckpt_1.ckpt", weights_only=True)
        assert f"ended the fit after step {saved['global_step']}" in run.output
        assert len(list(tmp_path.rglob("*.ckpt"))) == 1
    measured(f"SLURM's signal, {num_ranks} ranks: saved, requeued, 143, {took:.1f} s")


def _task(rank: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "LOCAL_RANK": str(rank)}
