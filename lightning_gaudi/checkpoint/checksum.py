"""Checksums of files, taken while they are written, and by several threads when they are read."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .manifest import CHUNK_BYTES

_MAX_THREADS = 8


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
        change: Gets the position and the bytes of each chunk, and may change these.

    Raises:
        OSError: The file cannot be read.
    """
    local = threading.local()
    descriptor = os.open(path, os.O_RDONLY)

    def digest(position: int) -> bytes:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(CHUNK_BYTES))
        part = local.buffer[: min(CHUNK_BYTES, num_bytes - position)]
        _fill(descriptor, part, position)
        if change is not None:
            change(position, part)
        return hashlib.sha256(part).digest()

    try:
        with ThreadPoolExecutor(_num_threads()) as pool:
            digests = pool.map(digest, range(0, num_bytes, CHUNK_BYTES))
            return hashlib.sha256(b"".join(digests)).hexdigest()
    finally:
        os.close(descriptor)


def _num_threads() -> int:
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def _fill(descriptor: int, part: memoryview, position: int) -> None:
    filled = 0
    while filled < len(part):
        got = os.preadv(descriptor, [part[filled:]], position + filled)
        if got == 0:
            raise EOFError(f"there are only {position + filled} bytes")
        filled += got
