"""What killed saves have left: found by the locks of those who save, and swept.

    .saving-file-<boot>-<any>.tmp   a file that is being written, locked by its writer
    .saving-<digest>.tmp            a folder that is being built; see `folders`
    .saving-<digest>.lock           locked while it is; says what is being saved
    .saving-removed-<any>.tmp       a folder that is being removed

A lock may not be seen from another machine: what was saved from there must also be old.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import IO

from .folders import recover, remove, sync, temporary_for

LATEST = "latest"
"""The file that names the version to load, in a folder of versions; DeepSpeed's name for it."""

TOOLS = {"zero_to_fp32.py", "zero_to_torch.py"}
"""What DeepSpeed puts into each folder."""

_MIN_AGE_S = 60.0
"""How long nobody must have written to what may be another machine's."""

_PATIENCE_S = 5.0
"""How long to wait for a lock: whoever sweeps has it for a moment."""


def file_for(target: Path) -> Path:
    """Where to write what shall become `target`: not by a name that is looked for."""
    return target.with_name(f".saving-file-{_boot()}-{uuid.uuid4().hex}.tmp")


def create_locked(path: Path) -> IO[bytes]:
    """Make a file, and hold it locked until it is closed or this process ends.

    Raises:
        OSError: It is there, or cannot be made.
    """
    while True:
        file = path.open("xb")
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # somebody has swept it before it was locked


class SaveLock:
    """Tells others that somebody saves; whoever finds it unlocked knows that he was killed.

    Args:
        target: The folder that is being saved.
        version: The name of the part of it that is being saved, if there are versions.

    Raises:
        BlockingIOError: Another process is saving to it.
    """

    def __init__(self, target: Path, version: str = "") -> None:
        self._name, self._version = target.name, version
        self._path = temporary_for(target).with_suffix(".lock")
        patience = time.monotonic() + _PATIENCE_S
        while True:
            self._file = self._path.open("a+b")
            is_mine = _lock(self._file)
            if is_mine is not False and os.fstat(self._file.fileno()).st_nlink:
                break
            self._file.close()
            if time.monotonic() > patience:
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"Could not save {target}: another process is saving to it. Have each run save "
                    "to a folder of its own.",
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(f"{_boot()}\n{target.name}\n{version}".encode())
        self._file.flush()
        # What it says must be on disk before what it tells of: after a loss of power nobody else
        # knows what was half written.
        os.fsync(self._file.fileno())
        sync(self._path.parent)

    def release(self) -> None:
        """Tell that the save has ended; what it has not completed is removed."""
        with contextlib.suppress(OSError):
            _clear(self._path, self._name, self._version)
        self._path.unlink(missing_ok=True)
        self._file.close()


def sweep(folder: Path) -> None:
    """Remove from a folder what killed saves have left there; what is being saved stays."""
    # Another process may sweep too, and the folder may be read-only or gone.
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(".saving-*")):
            with contextlib.suppress(OSError):
                _sweep(path)


def _sweep(path: Path) -> None:
    if path.name.startswith(".saving-removed-"):
        remove(path)
    elif path.name.startswith(".saving-file-"):
        with path.open("r+b") as left:  # NFS wants to write for a lock
            is_ours = path.name.startswith(f".saving-file-{_boot()}-")
            if _lock(left) and (is_ours or _is_old(path)):
                path.unlink()
    elif path.suffix == ".lock":
        with path.open("r+b") as left:
            if _lock(left):
                boot, name, version = _said(path, left.read())
                # Without a name it was killed before it wrote that, and anything else.
                places = (path, path.with_suffix(".tmp"), path.with_name(name or path.name))
                if not name or boot == _boot() or _is_old(*places):
                    _clear(path, name, version)
                    path.unlink(missing_ok=True)
    elif path.suffix == ".tmp" and not path.with_suffix(".lock").exists() and _is_old(path):
        remove(path)


def _said(lock: Path, data: bytes) -> tuple[str, str, str]:
    """The boot, the name and the version that a lock tells of; no name if it is not the lock's own.

    After a loss of power a lock may hold anything.
    """
    boot, name, version = [*data.decode(errors="replace").split("\n"), "", "", ""][:3]
    path = temporary_for(lock.parent / (name or "?")).with_suffix(".lock")
    return boot, name if path == lock and "\0" not in name else "", version


def _is_old(*paths: Path) -> bool:
    """Whether nothing in files or folders was written for a while."""
    found = [each for path in paths for each in (path, *path.rglob("*"))]
    times = [each.stat().st_mtime for each in found if each.exists()]
    return time.time() - max(times, default=0.0) > _MIN_AGE_S


def _boot() -> str:
    """What tells this run of this machine's kernel, which sees all locks taken here."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "unknown"


def _clear(lock: Path, name: str, version: str) -> None:
    """Remove what a killed save has built, and put back what it had set aside."""
    if not name:  # killed before it wrote that
        remove(lock.with_suffix(".tmp"))
        return
    target = lock.with_name(name)
    if not version:
        recover(target)
        remove(temporary_for(target))
        return
    latest = target / LATEST
    for half in target.glob(".saving-file-*"):  # of `latest`, which the lock's owner alone writes
        remove(half)
    if not latest.is_file():
        remove(target / version)
        if target.is_dir() and {each.name for each in target.iterdir()} <= TOOLS:
            remove(target)
    elif latest.read_text().strip() != version:
        remove(target / version)


def _lock(file: IO[bytes]) -> bool | None:
    """Lock a file until it is closed, or its process ends.

    Returns:
        False where another has, None where the file system cannot.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno == errno.EWOULDBLOCK else None
    return True
