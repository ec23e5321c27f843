"""Files with the names of ours that somebody else has put beside a checkpoint."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_gaudi.checkpoint import folders, leftovers
from lightning_gaudi.checkpoint.atomic import write_atomically
from lightning_gaudi.checkpoint.folders import temporary_for
from lightning_gaudi.checkpoint.leftovers import SaveLock, sweep
from tests.helpers.ranks import call_forked

NOBODY = 65534


def _victim(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "precious").write_text("mine")
    return folder


def _lock_for(target: Path) -> Path:
    return temporary_for(target).with_suffix(".lock")


def _age(path: Path) -> None:
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago), follow_symlinks=False)


def _save_and_sweep(folder: Path) -> None:
    write_atomically(folder / "x.ckpt", lambda file: file.write(b"x"))
    sweep(folder)
    for version in ("", "checkpoint"):
        SaveLock(folder / "last.ckpt", version).release()


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("version", ["", "checkpoint", "..", "../victim", "."])
@pytest.mark.parametrize(
    "name", ["{outside}", "..", "../outside", ".", "beside", "beside/inner", "link", "/", ""]
)
def test_a_lock_names_nothing_that_is_deleted(
    tmp_path: Path, is_seen: bool, version: str, name: str
) -> None:
    folder, outside = tmp_path / "saved", _victim(tmp_path / "outside")
    kept = [outside, _victim(outside / "checkpoint"), _victim(folder / "beside" / "inner")]
    kept += [_victim(folder / "beside" / "checkpoint"), _victim(tmp_path / "victim")]
    (folder / "link").symlink_to(outside)
    domain = leftovers._lock_domain(folder) if is_seen else "00000000"
    words = f"{domain}\n{name.format(outside=outside)}\n{version}".encode()
    for lock in (
        folder / ".saving-0.lock",
        _lock_for(folder / "beside"),
        _lock_for(folder / "link"),
    ):
        lock.write_bytes(words)
        _age(lock)
    _save_and_sweep(folder)
    assert all((each / "precious").read_text() == "mine" for each in kept)


def test_a_guessed_inode_leads_to_nothing_else(tmp_path: Path) -> None:
    """Neither a link to the folder nor a folder of another number is taken for the version."""
    folder, outside = tmp_path / "saved", _victim(tmp_path / "outside")
    inner = _victim(folder / "data" / "checkpoint")
    (folder / "linked").mkdir()
    (folder / "linked" / "checkpoint").symlink_to(outside)
    for target, inode in (("data", inner.stat().st_ino + 1), ("linked", outside.stat().st_ino)):
        lock = _lock_for(folder / target)
        lock.write_text(f"{leftovers._lock_domain(folder)}\n{target}\ncheckpoint\n{inode}\n0")
    sweep(folder)
    assert (outside / "precious").exists()
    assert (inner / "precious").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(b"\xff\xfe", b"\0" * 64, b"a\n\0\n", b"x" * 10_000, b"a\nb\nc\nd\ne\nf", b"\n" * 5000),
        *("a\n..\n", "a\n/etc\n", "a\nlast.ckpt\nv\n-1", "a\nlast.ckpt\nv\n" + "9" * 4000),
    ],
)
def test_a_lock_of_nonsense_stops_nobody_and_goes_when_it_is_old(
    tmp_path: Path, words: bytes | str
) -> None:
    content = words if isinstance(words, bytes) else words.encode()
    locks = [tmp_path / ".saving-0.lock", _lock_for(tmp_path / "last.ckpt")]
    for lock in locks:
        lock.write_bytes(content)
    _save_and_sweep(tmp_path)
    for lock in locks:
        lock.write_bytes(content)
        _age(lock)
    _save_and_sweep(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.ckpt"]


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def _pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, victim: Path) -> None:
    _victim(path)


@pytest.mark.parametrize("make", [_link, _hard_link, _pipe, _folder])
def test_what_lies_at_the_name_of_a_lock_is_not_written_to(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    folder, victim = tmp_path / "saved", tmp_path / "precious"
    folder.mkdir()
    victim.write_text("mine")
    for name, version in (("last.ckpt", ""), ("zero.ckpt", "checkpoint")):
        make(_lock_for(folder / name), victim)
        lock = SaveLock(folder / name, version)
        assert victim.read_text() == "mine"
        lock.release()
    assert victim.read_text() == "mine"
    left = [each for each in folder.iterdir() if not each.is_dir()]
    assert not left


@pytest.mark.parametrize("name", [".saving-file-0.tmp", ".saving-removed-0.tmp", ".saving-1.tmp"])
def test_links_are_removed_and_not_followed(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "saved", _victim(tmp_path / "outside")
    folder.mkdir()
    (folder / name).symlink_to(outside if "file" not in name else outside / "precious")
    inner = folder / ".saving-removed-1.tmp"
    inner.mkdir()
    (inner / "link").symlink_to(outside)
    _age(folder / name)
    sweep(folder)
    assert (outside / "precious").read_text() == "mine"
    assert not inner.exists()


def test_a_latest_that_is_no_text_is_no_reason_to_raise_or_to_delete(tmp_path: Path) -> None:
    for words in (b"\xff", b"x" * 5000, None):
        target = tmp_path / "last.ckpt"
        lock = SaveLock(target, "checkpoint")
        lock.make_version()
        (target / "checkpoint" / "part").touch()
        if words is None:
            os.mkfifo(target / "latest")
        else:
            (target / "latest").write_bytes(words)
        lock.release()
        assert (target / "checkpoint" / "part").exists()
        target.rename(tmp_path / f"{words!r:.9}")


def test_a_folder_nested_without_end_stops_no_save(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir(".saving-removed-0.tmp", dir_fd=here)
    deepest = os.open(".saving-removed-0.tmp", os.O_RDONLY, dir_fd=here)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deepest)
        inner = os.open("d", os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = inner
    os.close(deepest)
    os.close(here)
    _save_and_sweep(tmp_path)
    assert (tmp_path / "x.ckpt").exists()
    subprocess.run(["rm", "-rf", str(tmp_path / ".saving-removed-0.tmp")], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Run as root: it becomes other users.")


@needs_root
def test_what_another_user_owns_is_neither_swept_nor_written_to(tmp_path: Path) -> None:
    call_forked(_check_other_user, tmp_path, timeout=240)


def _check_other_user(home: Path) -> None:
    folder = home / "saved"
    folder.mkdir()
    theirs = [folder / ".saving-removed-0.tmp", folder / ".saving-1.tmp"]
    for path in theirs:
        _victim(path)
        os.chown(path, NOBODY, NOBODY)
        _age(path)
    file = folder / ".saving-file-0.tmp"
    file.touch()
    lock = _lock_for(folder / "last.ckpt")
    lock.write_text("theirs")
    for path in (file, lock):
        os.chown(path, NOBODY, NOBODY)
        _age(path)
    descriptor = os.open(lock, os.O_RDONLY)
    sweep(folder)
    assert all((path / "precious").exists() for path in theirs)
    assert file.exists()
    taken = SaveLock(folder / "last.ckpt")
    assert os.pread(descriptor, 100, 0) == b"theirs"  # another file has its name now
    assert lock.stat().st_uid == 0
    taken.release()
    assert not lock.exists()


@needs_root
def test_in_a_folder_as_tmp_another_users_lock_stops_no_save(tmp_path: Path) -> None:
    call_forked(_check_sticky, tmp_path, timeout=240)


def _check_sticky(home: Path) -> None:
    for parent in (home, *home.parents):
        if parent.stat().st_uid == 0 and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o755)
    folder = home / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    lock = _lock_for(folder / "last.ckpt")
    lock.write_text("theirs")
    lock.chmod(0o666)
    os.chown(lock, 12345, 12345)
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    taken = SaveLock(folder / "last.ckpt", "checkpoint")
    taken.make_version()
    assert lock.read_text() == "theirs"
    assert (folder / "last.ckpt" / "checkpoint").is_dir()
    taken.release()
    assert not (folder / "last.ckpt").exists()
    assert lock.read_text() == "theirs"


def test_one_who_takes_over_a_lock_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweeper opens a lock; it is released, and taken again, before the sweeper locks it."""
    target = tmp_path / "last.ckpt"
    first = SaveLock(target)
    second: list[SaveLock] = []
    lock = leftovers._lock

    def slowly(descriptor: int) -> bool | None:
        if not second:
            second.append(first)
            first.release()
            second[0] = SaveLock(target)
            temporary_for(target).mkdir()
        return lock(descriptor)

    monkeypatch.setattr(leftovers, "_lock", slowly)
    sweep(tmp_path)
    assert temporary_for(target).is_dir()
    assert _lock_for(target).is_file()
    second[0].release()
    assert not list(tmp_path.iterdir())


@needs_root
def test_what_a_server_of_files_gives_to_nobody_is_this_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does with root's files: a checkpoint that was set aside has to come back."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)
    target = tmp_path / "last.ckpt"
    aside = folders.temporary_for(target).with_suffix(".old")
    aside.mkdir()
    left = tmp_path / ".saving-removed-0.tmp"
    left.mkdir()
    folders.recover(target)
    assert target.is_dir()
    leftovers.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [target]
    os.chown(target, 12345, 12345)
    assert not folders.is_own(target)
