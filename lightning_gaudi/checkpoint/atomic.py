"""Writes a file at once or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from . import leftovers
from .folders import put_in_place
from .space import kept, mib


def write_atomically(target: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Lets `write` fill a file beside `target`, brings it to disk, and puts it in target's place.

    Until the last moment `target` keeps what it had, also through a crash of the machine; after a
    failure nothing is left beside it. What a killed save has left in the folder is removed.

    Raises:
        OSError: The file cannot be written; says how much, where, and how much space is left.
    """
    leftovers.sweep(target.parent)
    temporary = leftovers.file_for(target)
    file = None
    try:
        with leftovers.create_locked(temporary) as raw:
            file = _Recording(raw)
            write(file)  # type: ignore[arg-type]
            # A rename may reach the disk before the data do, and after a loss of power the name
            # would lead to an empty file. So the data come first.
            raw.flush()
            os.fsync(raw.fileno())
            # Locked until it has its name: another rank that saves here sweeps what nobody locks.
            put_in_place(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch's writer reports a failed write as a RuntimeError of its own.
        cause = error if isinstance(error, OSError) else file and file.error
        if isinstance(cause, OSError):
            raise _explain(cause, target, file.num_bytes if file else 0) from error
        raise


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
        free = f"; {mib(shutil.disk_usage(target.parent).free)} are free there"
    except OSError:
        free = ""
    message = (
        f"Could not save {target}: {cause.strerror or cause} after {mib(num_bytes)}{free}."
        f"{kept(target)} Free some space or save elsewhere."
    )
    return OSError(cause.errno, message)
