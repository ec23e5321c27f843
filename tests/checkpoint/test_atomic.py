from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

import pytest

from lightning_gaudi.checkpoint.atomic import write_atomically


def test_file_appears_complete(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")

    def write(file: IO[bytes]) -> None:
        file.write(b"new")
        assert target.read_bytes() == b"old"
        (temporary,) = set(tmp_path.iterdir()) - {target}
        assert "x" not in temporary.stem

    write_atomically(target, write)
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_failure_of_the_writer_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(tmp_path / "x", write)
    assert not list(tmp_path.iterdir())


def test_failed_write_is_explained_even_if_the_writer_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(Path, "open", lambda *_: os.fdopen(full, "wb", buffering=0))

    def write(file: IO[bytes]) -> None:
        try:
            file.write(b"half")
        except OSError:
            raise RuntimeError("unexpected pos 64") from None

    with pytest.raises(OSError, match=r"Could not save .*x: No space left on device") as raised:
        write_atomically(tmp_path / "x", write)
    assert raised.value.errno == errno.ENOSPC


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Could not save .*none/x: No such file"):
        write_atomically(tmp_path / "none" / "x", lambda file: None)


def test_folder_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").resolve()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_atomically(tmp_path / "x", lambda file: None)
    assert synced[0].endswith(".tmp")
    assert synced[1] == str(tmp_path.resolve())
