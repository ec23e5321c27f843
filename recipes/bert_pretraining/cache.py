"""Makes folders once and finds them later; one process at a time makes one, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
from lightning.pytorch.utilities import rank_zero_info

from lightning_gaudi.untrusted import parse_json, path_inside

_LIST = "complete.json"  # written last: sizes of the files, and what they were made from
_DAYS_UNUSED = 30
_POLL_SECONDS = 0.2


def cached_folder(root: Path, name: str, key: Any, make: Callable[[Path], None]) -> Path:
    """Returns the folder that `make` filled, now or in an earlier run.

    Ranks may ask together: one makes it, the others wait for that. What was cut off on the way, or
    lost a part since, is made again. Folders that nobody asked for in 30 days are removed when
    another one is made; all of them may be removed by hand whenever no run uses them.

    Args:
        root: the cache, `data.cache_dir`.
        name: what the folder's name begins with, to recognise it.
        key: everything that decides the content, as JSON would take it.
        make: writes the content into an empty folder.

    Raises:
        OSError: if it cannot be written, saying where and what to do.
    """
    text = json.dumps(key, sort_keys=True)
    folder = root / f"{_slug(name)}-{_digest(text)}"
    if not _is_complete(folder):
        with _explained(root):
            root.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_suffix(".lock")):
                if not _is_complete(folder):
                    _make(folder, text, make)
                    _prune(root)
    with contextlib.suppress(OSError):  # a cache that may only be read works as well
        os.utime(folder / _LIST)
    return folder


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:40]


def _is_complete(folder: Path) -> bool:
    """Returns whether all files are there, in the sizes that they were written with."""
    try:
        sizes = _about(folder)["sizes"]
        return bool(sizes) and all(
            path_inside(folder, name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _about(folder: Path) -> dict[str, Any]:
    """Returns what the list in a folder says about it.

    Raises:
        OSError: There is none.
        ValueError: It is not a list of ours.
    """
    found = parse_json((folder / _LIST).read_bytes())
    if not isinstance(found, dict):
        raise ValueError("It is no mapping.")
    return found


def _is_ours(folder: Path) -> bool:
    """Returns whether the folder's name ends with the digest of the key that its list has."""
    try:
        key = json.dumps(_about(folder)["made_from"], sort_keys=True)
    except (OSError, ValueError, KeyError):
        return False
    return not folder.is_symlink() and folder.name.endswith(f"-{_digest(key)}")


def _make(folder: Path, key: str, make: Callable[[Path], None]) -> None:
    """Fills a folder beside `folder` and renames it; the caller holds the lock."""
    # Only leftovers of this machine: on some network file systems others do not see the lock.
    prefix = f"{folder.name}.{_slug(socket.gethostname())}."
    for stale in folder.parent.glob(f"{prefix}*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    rank_zero_info(f"Preparing the data, once, in {folder} ...")
    with tempfile.TemporaryDirectory(
        prefix=prefix, suffix=".tmp", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        content = Path(temporary) / "content"
        content.mkdir()
        make(content)
        sizes = {path.name: path.stat().st_size for path in sorted(content.iterdir())}
        about = {"sizes": sizes, "made_from": json.loads(key)}
        (content / _LIST).write_text(json.dumps(about, indent=1), encoding="utf-8")
        for path in content.iterdir():
            _sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            content.rename(folder)
        except OSError:
            if not _is_complete(folder):  # otherwise another machine was first
                raise


def _sync(path: Path) -> None:
    """Writes the file to the disk, before it is renamed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        rank_zero_info("Waiting for another process that prepares the same data ...")
        lock.acquire(poll_interval=_POLL_SECONDS)
    except NotImplementedError as error:
        raise OSError("its file system cannot lock files") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explained(root: Path) -> Iterator[None]:
    """Has an error name the folder that could not be written."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            path = Path(error.filename)
            if root not in (path, *path.parents) and path not in root.parents:
                raise  # of a file that was read
        raise OSError(
            error.errno or 0,
            f"The prepared data cannot be kept in {root}: {error.strerror or error}. Free some "
            "space there or set data.cache_dir to a folder that can be written",
        ) from error


def _prune(root: Path) -> None:
    """Removes folders that nobody asked for in a long time."""
    oldest = time.time() - _DAYS_UNUSED * 24 * 3600
    for path in root.glob(f"*/{_LIST}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest and _is_ours(path.parent):
                shutil.rmtree(path.parent, ignore_errors=True)
