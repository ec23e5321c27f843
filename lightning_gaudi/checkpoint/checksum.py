"""Checksums of files, taken while they are written, and by several threads when they are read."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from .manifest import CHUNK_BYTES, FileEntry

_MAX_THREADS = 8

_PIECE_BYTES = 2**18
"""How much is read at a time: what a core's own cache holds until it is hashed."""


class Checksum:
    """The checksum of what comes piece by piece: the SHA-256 of the SHA-256 of all chunks.

    A single SHA-256 of everything could not be shared among threads.
    """

    def __init__(self) -> None:
        self._chunks = hashlib.sha256()
        self._chunk = hashlib.sha256()
        self._room = CHUNK_BYTES
        self.num_bytes = 0

    def update(self, data: Any) -> None:
        """Take more bytes, of anything that has some."""
        view = memoryview(data).cast("B")
        self.num_bytes += len(view)
        while len(view) >= self._room:
            self._chunk.update(view[: self._room])
            view = view[self._room :]
            self._chunks.update(self._chunk.digest())
            self._chunk, self._room = hashlib.sha256(), CHUNK_BYTES
        if len(view):
            self._chunk.update(view)
            self._room -= len(view)

    def hexdigest(self) -> str:
        """The checksum of what has come."""
        chunks = self._chunks.copy()
        if self._room < CHUNK_BYTES:
            chunks.update(self._chunk.digest())
        return chunks.hexdigest()


def checksum_of(
    path: Path, num_bytes: int, change: Callable[[int, memoryview], None] | None = None
) -> str:
    """The checksum of the first bytes of a file, as `Checksum` has it.

    Args:
        path: The file.
        num_bytes: How many; there must be as many.
        change: Gets the position and the bytes of each piece, and may change these.

    Raises:
        OSError: The file cannot be read.
    """
    mine = _Buffer()
    descriptor = os.open(path, os.O_RDONLY)

    def digest(position: int) -> bytes:
        chunk, end = hashlib.sha256(), min(position + CHUNK_BYTES, num_bytes)
        for start in range(position, end, _PIECE_BYTES):
            part = mine.buffer[: min(_PIECE_BYTES, end - start)]
            _fill(descriptor, part, start)
            if change is not None:
                change(start, part)
            chunk.update(part)
        return chunk.digest()

    try:
        with ThreadPoolExecutor(_num_threads()) as pool:
            digests = pool.map(digest, range(0, num_bytes, CHUNK_BYTES))
            return hashlib.sha256(b"".join(digests)).hexdigest()
    finally:
        os.close(descriptor)


class _Buffer(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_PIECE_BYTES))


def _num_threads() -> int:
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def _fill(descriptor: int, part: memoryview, position: int) -> None:
    filled = 0
    while filled < len(part):
        got = os.preadv(descriptor, [part[filled:]], position + filled)
        if got == 0:
            raise EOFError(f"there are only {position + filled} bytes")
        filled += got


class ChecksumFile:
    """A file that takes the checksum of what is written to it, piece after piece.

    Args:
        file: What is written to, from its start.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._checksum = Checksum()

    def write(self, data: Any) -> int:
        """Write all of it."""
        self._checksum.update(data)
        return self._file.write(data)

    def entry(self) -> FileEntry:
        """What has been written."""
        return FileEntry(self._checksum.num_bytes, self._checksum.hexdigest())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
