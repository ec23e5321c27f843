"""The power fails while checkpoints are saved: the newest whole one is found, and loads."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi.checkpoint.io import HPUCheckpointIO
from lightning_gaudi.checkpoint.litter import sweep
from lightning_gaudi.checkpoint.manifest import DamagedCheckpointError
from lightning_gaudi.checkpoint.newest import candidates
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_checkpoint
from tests.helpers.power_loss import Disk, Operation, rebuild, record
from tests.helpers.process import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

NUM_STATES = 2000
PROGRAM = [sys.executable, "-m", "tests.checkpoint.saving_program"]


def _load_zero(path: Path) -> dict[str, Any]:
    from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidated

    return dict(consolidated(path)[0])


LOADERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "file": HPUCheckpointIO().load_checkpoint,
    "asynchronous": HPUCheckpointIO().load_checkpoint,
    "shards": load_full_checkpoint,
    "zero": _load_zero,
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: thousands are made and removed."""
    parent = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=parent if parent.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_newest_whole_checkpoint_is_found_and_loads(
    kind: str, tmp_path: Path, memory: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    operations = record(
        [*PROGRAM, kind, str(folder)],
        folder,
        tmp_path / "log",
        env=environment({"LIGHTNING_GAUDI_SIMULATE": "2"}),
        cwd=Path(__file__).parents[2],
        timeout=600,
    )
    assert sum(each.name == "fsync" for each in operations) > 8
    disk, weights = Disk(operations, folder), {}
    num_states = 0
    for end, state in disk.states(NUM_STATES, seed=1):
        num_states += 1
        place = memory / "state"
        rebuild(state, place)
        step = _check(kind, place, disk.marks(end), weights, f"{kind}, after {end} operations")
        if step and num_states % 20 == 0:
            _save_again(place, step)
        shutil.rmtree(place)
    print(f"{kind}: {len(operations)} operations, {num_states} states")
    assert num_states > len(operations) // 4


def _check(kind: str, place: Path, marks: list[str], weights: dict[int, Any], where: str) -> int:
    """Returns the step of the checkpoint that a fit would go on from; 0 if there is none."""
    saved = max((int(each.partition("-")[2]) for each in marks if "saved" in each), default=0)
    begun = max((int(each.partition("-")[2]) for each in marks if "begun" in each), default=0)
    for candidate in candidates([place]):
        try:
            found = LOADERS[kind](candidate.path)
        except (DamagedCheckpointError, OSError):
            continue
        step = found["global_step"]
        assert saved <= step <= max(saved, begun), f"{where}: step {step}, {marks}"
        state = found["state_dict"]
        known = weights.setdefault(step, state)
        assert all(torch.equal(state[name], known[name]) for name in known), where
        return step
    assert not saved, f"{where}: none is found, {marks}, {sorted(place.rglob('*'))}"
    return 0


def _save_again(place: Path, step: int) -> None:
    """A further save works there, and what the power loss has left is swept."""
    HPUCheckpointIO().save_checkpoint({"global_step": step + 1, "x": torch.ones(2)}, place / "n.pt")
    for folder in {place, *(each.parent for each in place.rglob(".saving-*"))}:
        sweep(folder)
    left = [each for each in place.rglob(".saving-*") if each.suffix != ".tmp"]
    assert not left, left


def test_a_save_without_fsync_would_be_found_out(tmp_path: Path) -> None:
    folder = str(tmp_path)
    careless = [
        Operation("create", f"{folder}/a.tmp"),
        Operation("write", f"{folder}/a.tmp", data=b"content"),
        Operation("rename", f"{folder}/a.tmp", f"{folder}/a"),
        Operation("fsync", folder),
        Operation("mark", "saved"),
    ]
    contents = {state.get("a") for end, state in Disk(careless, tmp_path).states(200, 1) if end > 4}
    assert {b"", bytes(7), b"con", b"content"} <= contents
    careful = [*careless[:2], Operation("fsync", f"{folder}/a.tmp"), *careless[2:]]
    contents = {state.get("a") for end, state in Disk(careful, tmp_path).states(200, 1) if end > 5}
    assert contents == {b"content"}
    nameless = [each for each in careful if each.path != folder]
    contents = {state.get("a") for end, state in Disk(nameless, tmp_path).states(200, 1) if end > 4}
    assert contents == {b"content", None}
