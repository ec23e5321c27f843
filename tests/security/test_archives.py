"""Programs of TorchScript in disguise, and files that change or wait, at all that loads a file."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.checkpoint import restricted
from lightning_gaudi.checkpoint.candidates import candidates
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError, UntrustedCheckpointError
from lightning_gaudi.checkpoint.files import open_mapped
from tests.helpers.archives import AFTER, BEFORE, DISGUISES, plain, program

pytestmark = pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated

Load = Callable[[Path], Any]

LOADS: dict[str, Load] = {
    "a path": restricted.load,
    "an open file": lambda path: restricted.load(io.BytesIO(path.read_bytes())),
    "mapped": lambda path: open_mapped(path, weights_only=True),
    "HPUCheckpointIO": HPUCheckpointIO().load_checkpoint,
    "instead of torch.load": restricted.instead_of(torch.load),
}
EXECUTED_BY_TORCH = {*DISGUISES} - {"other case", "prefix"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the programs write to."""
    return tmp_path_factory.mktemp("target") / "shell-start"


@pytest.fixture(scope="module")
def script(target: Path) -> bytes:
    return program(target)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_program_of_torchscript_runs(
    disguise: str, script: bytes, target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(DISGUISES[disguise](script))
    target.write_bytes(BEFORE)
    for load in LOADS.values():
        with pytest.raises((UntrustedCheckpointError, DamagedCheckpointError)):
            load(path)
        assert target.read_bytes() == BEFORE
    if disguise in EXECUTED_BY_TORCH:  # so that it is not for another reason
        torch.load(path, weights_only=False)
        assert target.read_bytes() == AFTER


def test_a_file_that_is_changed_while_it_is_loaded_runs_nothing(
    script: bytes, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what gets the name of the file in the meantime, nor what is written over it."""
    original = restricted.open_archive

    def open_and_change(file: Any) -> Any:
        opened = original(file)
        other = tmp_path / "other"
        other.write_bytes(script)
        other.replace(path)
        os.truncate(file.fileno(), 0) if is_written else None
        os.pwrite(file.fileno(), script, 0) if is_written else None
        return opened

    monkeypatch.setattr(restricted, "open_archive", open_and_change)
    target.write_bytes(BEFORE)
    for is_written in (False, True):
        path = tmp_path / f"{is_written}.ckpt"
        path.write_bytes(plain())
        with path.open("r+b") as file:
            try:
                found = restricted.load(file, mmap=not is_written)
            except DamagedCheckpointError:
                assert is_written
            else:
                assert torch.equal(found["state_dict"]["weight"], torch.ones(3))
    assert target.read_bytes() == BEFORE


def test_torchscript_stays_what_it_is_for_others(script: bytes, target: Path) -> None:
    """Another thread may load one of its own at the same moment."""
    target.write_bytes(BEFORE)

    def load_own() -> None:
        torch.jit.load(io.BytesIO(script))

    thread = threading.Thread(target=load_own)
    thread.start()
    restricted.load(io.BytesIO(plain()))
    thread.join()
    assert target.read_bytes() == AFTER


def test_a_pipe_is_no_checkpoint_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "step=9.ckpt"
    os.mkfifo(path)
    for load in (restricted.load, LOADS["mapped"], LOADS["HPUCheckpointIO"]):
        with pytest.raises(DamagedCheckpointError, match="is not a regular file"):
            load(path)
    HPUCheckpointIO().save_checkpoint({"loops": {}, "epoch": 1}, tmp_path / "step=1.ckpt")
    damaged: list[str] = []
    assert [each.path.name for each in candidates([tmp_path], damaged)] == ["step=1.ckpt"]
    assert len(damaged) == 1


def test_a_prefix_before_an_archive_is_read_as_an_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"#!/bin/sh\n" + plain())
    with pytest.raises(DamagedCheckpointError, match="is no checkpoint"):
        restricted.load(path)


def test_what_a_program_writes_is_no_safetensors_file(
    script: bytes, target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(script)
    target.write_bytes(BEFORE)
    with pytest.raises((DamagedCheckpointError, UntrustedCheckpointError)):
        restricted.load(path)
    assert target.read_bytes() == BEFORE


def test_an_old_file_has_no_source_compared(tmp_path: Path) -> None:
    """Torch's old format may name a class, whose source torch reads, and writes a patch for."""
    identity = (
        b"(X\x06\x00\x00\x00modulecargparse\nNamespace\nX\x01\x00\x00\x00aX\x01\x00\x00\x00bt"
    )
    file = io.BytesIO()
    torch.save([], file, _use_new_zipfile_serialization=False)
    whole, empty = file.getvalue(), b"\x80\x02]q\x00."
    path = tmp_path / "x.ckpt"
    at = whole.index(empty)
    path.write_bytes(whole[:at] + b"\x80\x02" + identity + b"Q." + whole[at + len(empty) :])
    with pytest.raises(UntrustedCheckpointError, match="a persistent object that is not a storage"):
        restricted.load(path)


@pytest.mark.parametrize("kind", [{"compression": 8}, {"old": True}, {"path": True}])
def test_what_torch_has_saved_in_any_form_is_loaded(kind: dict[str, Any], tmp_path: Path) -> None:
    path, value = tmp_path / "x.ckpt", {"weight": torch.arange(6.0).reshape(2, 3).T, "n": [1, "a"]}
    if "old" in kind:
        torch.save(value, path, _use_new_zipfile_serialization=False)
    elif "path" in kind:
        torch.save(value, path)
    else:
        file = io.BytesIO()
        torch.save(value, file)
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w", 8) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
    for load in LOADS.values():
        found = load(path)
        assert torch.equal(found["weight"], value["weight"])
        assert found["n"] == [1, "a"]
