"""Opens files of checkpoints: once each, and regular files only.

A path that is opened twice may lead to two files, and reading from a pipe may wait for ever.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO, Any, cast

import torch
from typing_extensions import override

from lightning_gaudi.untrusted import printable

from .errors import DamagedCheckpointError


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a regular file for reading, without waiting for a writer if it is a pipe.

    Raises:
        DamagedCheckpointError: It is a pipe, a device or a socket.
        OSError: It cannot be opened, or is a folder.
    """
    # Opened first and then looked at: what a path leads to can change between a look and an open.
    # Without O_NONBLOCK opening a pipe waits until somebody writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(kind):
            raise DamagedCheckpointError(
                f"{printable(path)} is not a regular file, but a pipe or a device. Pass the path "
                "of a checkpoint."
            )
        return cast("IO[bytes]", os.fdopen(descriptor, "rb"))
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path, limit: int) -> bytes:
    """Returns the content of a file that should be small.

    Raises:
        DamagedCheckpointError: It has more than `limit` bytes, or is no regular file.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        return read_limited(file, limit, path)


def read_limited(file: IO[bytes], limit: int, name: object) -> bytes:
    """Returns the content of an open file that should be small.

    Args:
        file: Opened for reading.
        limit: How many bytes it may have.
        name: Of the file, for the message.

    Raises:
        DamagedCheckpointError: It has more.
    """
    # One byte more tells a file of just this size from a larger one, without asking for its size,
    # which may change.
    data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedCheckpointError(
            f"{printable(name)} is damaged: it has more than the {limit:,} bytes that such a file "
            "may have."
        )
    return data


class Part(io.RawIOBase):
    """A part of an open file that reads like a file of its own.

    Args:
        file: The file; it stays open.
        begin: Where the part begins.
        num_bytes: How long it is.
    """

    def __init__(self, file: IO[bytes], begin: int, num_bytes: int) -> None:
        self._file, self._begin, self._num_bytes = file, begin, num_bytes
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = max(0, offset + (0, self._at, self._num_bytes)[whence])
        return self._at

    @override
    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._num_bytes - self._at)]
        # Always, since other parts move the position of the same file.
        self._file.seek(self._begin + self._at)
        num_read: int = self._file.readinto(view)  # type: ignore[attr-defined]
        self._at += num_read
        return num_read


def address_of(file: Any) -> str:
    """Returns a path that leads to an open file even if its name is another's by now."""
    return f"/proc/self/fd/{file.fileno()}"


def mapped(file: Any) -> torch.UntypedStorage:
    """Maps an open file as a storage, whose bytes are read when they are used.

    What is written to the storage stays in memory.
    """
    size = os.fstat(file.fileno()).st_size
    return cast(
        "torch.UntypedStorage", torch.UntypedStorage.from_file(address_of(file), False, size)
    )
