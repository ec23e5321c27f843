from __future__ import annotations

import errno
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import IO

import pytest

from lightning_gaudi.checkpoint import leftovers
from lightning_gaudi.checkpoint.atomic import write_atomically
from tests.helpers.ranks import call_forked


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


def test_ranks_that_save_beside_each_other_sweep_nothing_of_each_other(tmp_path: Path) -> None:
    def save(rank: int) -> None:
        for number in range(20):
            write_atomically(tmp_path / f"{rank}-{number}", lambda file: file.write(b"x"))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(save, range(4))) == [None] * 4
    assert len(list(tmp_path.iterdir())) == 80


def test_failed_write_is_explained_even_if_the_writer_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(leftovers, "create_locked", lambda _: os.fdopen(full, "wb", buffering=0))

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


def _hang(target: Path, is_writing: Event) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        file.flush()
        is_writing.set()
        time.sleep(600)

    write_atomically(target, write)


def _age(path: Path) -> None:
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))


def test_what_a_killed_save_has_left_is_removed_and_a_running_one_is_not(tmp_path: Path) -> None:
    call_forked(_check_killed_save, tmp_path, timeout=120)


def _check_killed_save(folder: Path) -> None:
    saved = folder / "saved"
    saved.mkdir()
    context = multiprocessing.get_context("fork")
    events = [context.Event() for _ in range(2)]
    killed, running = (
        context.Process(target=_hang, args=(saved / str(number), event), daemon=True)
        for number, event in enumerate(events)
    )
    killed.start()
    running.start()
    assert all(event.wait(60) for event in events)
    for left in saved.iterdir():
        _age(left)
    killed.kill()
    killed.join()
    write_atomically(saved / "x", lambda file: None)
    assert (saved / "x").exists()
    (half,) = set(saved.iterdir()) - {saved / "x"}
    assert half.read_bytes() == b"half"
    running.kill()


def test_what_another_process_begins_to_write_is_left_alone(tmp_path: Path) -> None:
    """It may not have been locked yet."""
    begun = tmp_path / ".saving-file-0.tmp"
    begun.touch()
    write_atomically(tmp_path / "x", lambda file: None)
    assert begun.exists()
    _age(begun)
    write_atomically(tmp_path / "x", lambda file: None)
    assert not begun.exists()


def test_what_is_written_by_another_mount_is_left_alone(tmp_path: Path) -> None:
    """Locks are not seen from one mount of a folder to another, as two pods of one machine have."""
    name = leftovers.file_for(Path("/proc/x")).name  # on another device
    assert name[:30] != leftovers.file_for(tmp_path / "x").name[:30]
    begun = tmp_path / name
    begun.touch()
    write_atomically(tmp_path / "x", lambda file: None)
    assert begun.exists()


def test_lock_that_says_nothing_yet_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".saving-0.lock").touch()
    leftovers.sweep(tmp_path)
    assert not list(tmp_path.iterdir())
