"""Write a file at once or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .folders import put_in_place

_NAME = ".saving-file-{}.tmp"
"""Of what is being written: without the target's name, so that nobody who looks for it finds it."""

_MIN_AGE_S = 60.0
"""How old a file is before it may be taken for one that a killed save has left."""


def write_atomically(target: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Have `write` fill a file beside `target`, bring it to disk, then put it in target's place.

    Until the last moment `target` keeps what it had, also through a crash of the machine; after a
    failure nothing is left beside it. What a killed save has left in the folder is removed.

    Raises:
        OSError: The file cannot be written; says how much, where, and how much space is left.
    """
    _sweep(target.parent)
    temporary = target.with_name(_NAME.format(uuid.uuid4().hex))
    file = None
    try:
        with temporary.open("xb") as raw:
            _lock(raw)
            file = _Recording(raw)
            write(file)  # type: ignore[arg-type]
            raw.flush()
            os.fsync(raw.fileno())
        put_in_place(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch's writer reports a failed write as a RuntimeError of its own.
        cause = error if isinstance(error, OSError) else file and file.error
        if isinstance(cause, OSError):
            raise _explain(cause, target, file.num_bytes if file else 0) from error
        raise


def _sweep(folder: Path) -> None:
    """Remove what killed saves have left: files that are not new, and whose writers are dead."""
    for path in folder.glob(_NAME.format("*")):
        # Another process may sweep too, and the folder may be read-only or gone.
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _MIN_AGE_S
            if is_old:
                with path.open("r+b") as left:  # NFS wants to write for a lock
                    if _lock(left):
                        path.unlink()


def _lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed, or its process ends; False where another has, or none can."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also of a file system that cannot
        return False
    return True


class _Recording:
    """A file that remembers what its first failed write said."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.num_bytes += written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _explain(cause: OSError, target: Path, num_bytes: int) -> OSError:
    try:
        free = f"; {shutil.disk_usage(target.parent).free / 2**20:.1f} MiB are free there"
    except OSError:
        free = ""
    kept = " The file that was there before is intact." if target.exists() else ""
    message = (
        f"Could not save {target}: {cause.strerror or cause} after {num_bytes / 2**20:.1f} MiB"
        f"{free}.{kept} Free some space or save elsewhere."
    )
    return OSError(cause.errno, message)
