"""Checkpoints that run code if they are unpickled, given to all that loads one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi.checkpoint.errors import UntrustedCheckpointError
from tests.helpers.malicious import OBJECTS, Canaries
from tests.helpers.process import environment
from tests.helpers.tiny import TinyModule, batches
from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import trainer, zero

OLDEST = "2.5.6"
"""The first Lightning that we support."""

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def oldest_lightning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with it alone: all else is this environment's."""
    folder = tmp_path_factory.mktemp("lightning")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*pip, f"lightning=={OLDEST}"], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        pytest.skip(f"Lightning {OLDEST} cannot be installed here, a package index could: {reason}")
    return folder


def attack(program: str, folder: Path, mode: str, lightning: Path | None) -> dict[str, Any]:
    """What a program of attacks found."""
    paths = [str(path) for path in (lightning, _ROOT) if path]
    env = environment(
        {"PYTHONPATH": os.pathsep.join(paths), "PT_HPU_LAZY_MODE": str(int(mode == "lazy"))}
    )
    done = subprocess.run(
        [sys.executable, "-m", program, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("FOUND "))
    return found


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("version", ["installed", OLDEST])
def test_nothing_of_a_malicious_checkpoint_runs(
    version: str,
    mode: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    measured: Callable[[str], None],
) -> None:
    lightning = request.getfixturevalue("oldest_lightning") if version == OLDEST else None
    found = attack("tests.faults.attack", tmp_path, mode, lightning)
    assert found["is_lazy"] == (mode == "lazy")
    assert version in ("installed", found["lightning"])
    assert found["executed"] == 0
    assert found["faults"] == []
    assert found["executed_if_trusted"] > 0
    measured(
        f"Lightning {found['lightning']}, {mode}: {len(found['entries'])} entry points, "
        f"{found['files']} files, {found['attempts']} attempts: 0 executed"
    )


def _resume_poisoned(rank: int, folder: Path) -> str:
    first = trainer(2, max_epochs=1, **zero(2))
    first.fit(TinyModule(), batches(4))
    first.save_checkpoint(folder / "zero.ckpt")
    if rank == 1:
        (file,) = (folder / "zero.ckpt").glob("*/*zero_pp_rank_1_*optim_states.pt")
        evil = OBJECTS["os.system"](Canaries(folder / "ran").path("1"))
        torch.save({**torch.load(file, weights_only=False), "evil": evil}, file)
    torch.distributed.barrier()
    try:
        trainer(2, max_epochs=2, **zero(2)).fit(
            TinyModule(), batches(4), ckpt_path=folder / "zero.ckpt"
        )
    except (UntrustedCheckpointError, ValueError) as error:
        return str(error)
    return "loaded"


def test_ranks_refuse_the_file_of_one_together(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    messages = run_trainers(_resume_poisoned, tmp_path, tmp_path)
    for message in messages:
        assert "zero_pp_rank_1_mp_rank_00_optim_states.pt was not loaded: it holds" in message
    assert Canaries(tmp_path / "ran").num_executed == 0
    measured("a file of rank 1 of 2 is refused by both")
