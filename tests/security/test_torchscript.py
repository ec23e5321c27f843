"""Files that `torch.load` would hand to TorchScript."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi.checkpoint import restricted
from lightning_gaudi.checkpoint.errors import UntrustedCheckpointError
from lightning_gaudi.checkpoint.io import HPUCheckpointIO, load_file, open_mapped
from lightning_gaudi.deepspeed.checkpoint import shards
from tests.helpers.torchscript import DISGUISES, program

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchScript", "ignore:.*torch.jit")


def _from_deepspeed(path: Path) -> Any:
    with shards.read_by_deepspeed():
        return torch.load(path, map_location="cpu", weights_only=False)


ENTRIES: dict[str, Callable[[Path], Any]] = {
    "load": restricted.load,
    "load of bytes": lambda path: restricted.load(io.BytesIO(path.read_bytes())),
    "mapped": lambda path: restricted.load(path, mmap=True),
    "open_mapped": lambda path: open_mapped(path, weights_only=None),
    "load_file": lambda path: load_file(path, "cpu", True),
    "HPUCheckpointIO": HPUCheckpointIO().load_checkpoint,
    "DeepSpeed": _from_deepspeed,
    "DeepSpeed's shards": shards.load,
}


@pytest.fixture(params=DISGUISES)
def disguised(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program that writes the file `ran` beside it."""
    path = tmp_path / "program.ckpt"
    path.write_bytes(DISGUISES[request.param](program(str(tmp_path / "ran"))))
    return path


def test_torch_itself_would_run_it(disguised: Path) -> None:
    torch.load(disguised, weights_only=False)
    assert (disguised.parent / "ran").exists()


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_program_runs(entry: str, disguised: Path) -> None:
    with pytest.raises(UntrustedCheckpointError, match="it holds a program of TorchScript"):
        ENTRIES[entry](disguised)
    assert not (disguised.parent / "ran").exists()
