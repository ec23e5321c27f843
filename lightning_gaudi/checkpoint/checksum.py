"""Takes checksums of files while they are written, and by several threads while they are read."""

from __future__ import annotations

import ctypes
import hashlib
import io
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import IO, Any

from typing_extensions import override

from .manifest import CHUNK_BYTES, FileEntry
from .opening import open_regular

_MAX_THREADS = 8

_SHARED_BYTES = 4 * CHUNK_BYTES
"""Reads of at least this size are shared among threads."""

_LIBC = ctypes.CDLL(None)
_MADV_POPULATE_WRITE = 23  # Linux 5.14, mman-common.h; the module `mmap` has no name for it


class Checksum:
    """Takes the checksum of a stream: the SHA-256 of the SHA-256 digests of its chunks.

    A single SHA-256 of everything could not be shared among threads.

    Args:
        chunk_bytes: The size of a chunk.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = self._room = chunk_bytes
        self._chunks = hashlib.sha256()
        self._chunk = hashlib.sha256()
        self.num_bytes = 0

    def update(self, data: Any) -> None:
        """Takes more bytes, of anything that has some."""
        view = memoryview(data).cast("B")
        self.num_bytes += len(view)
        # Writers hand over pieces of any size, so a chunk may begin in one and end in the next.
        while len(view) >= self._room:
            self._chunk.update(view[: self._room])
            view = view[self._room :]
            self._chunks.update(self._chunk.digest())
            self._chunk, self._room = hashlib.sha256(), self._chunk_bytes
        if len(view):
            self._chunk.update(view)
            self._room -= len(view)

    def entry(self) -> FileEntry:
        """Returns what has come."""
        # A copy, so that one may ask and go on writing.
        chunks = self._chunks.copy()
        if self._room < self._chunk_bytes:
            chunks.update(self._chunk.digest())
        return FileEntry(self.num_bytes, chunks.hexdigest(), self._chunk_bytes)


class ReadingChecksum(io.FileIO):
    """A file whose first bytes are hashed while somebody reads it.

    Large reads, such as those of tensors, are shared among threads, which read and hash chunk by
    chunk into the caller's memory. So hashing needs no copy, and the bytes that are used are the
    bytes that were compared, except in the two chunks in which a read begins and ends.

    Args:
        file: Its path; or the file itself, open, which stays open.
        entry: How many bytes are hashed, and in which chunks; there must be as many.
        change: Gets the first chunk, and may change it for the checksum.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(
        self,
        file: Path | IO[bytes],
        entry: FileEntry,
        change: Callable[[memoryview], None] | None = None,
    ) -> None:
        self._num_bytes, self._chunk_bytes = entry.num_bytes, entry.chunk_bytes
        self._change = change
        self._digests: dict[int, bytes] = {}
        self._num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        # Made first, since `close` shuts it down, and Python calls `close` also of a file object
        # whose opening has failed.
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="checksum")
        source = open_regular(file) if isinstance(file, Path) else file
        # A descriptor of its own: FileIO closes the one that it gets.
        super().__init__(os.dup(source.fileno()))
        if source is not file:
            source.close()
        self._file_bytes = os.fstat(self.fileno()).st_size

    @override
    def close(self) -> None:
        self._pool.shutdown()
        super().close()

    @override
    def readinto(self, buffer: Any, /) -> int:
        start, view = self.tell(), memoryview(buffer).cast("B")
        view = view[: max(0, self._file_bytes - start)]
        if len(view) < _SHARED_BYTES:
            _fill(self.fileno(), view, start)
        else:
            end = start + len(view)
            chunks = range(start // self._chunk_bytes, -(-end // self._chunk_bytes))
            step = -(-len(chunks) // self._num_threads)
            self._together(
                [
                    partial(self._read, view, start, chunks[first : first + step])
                    for first in range(0, len(chunks), step)
                ]
            )
        self.seek(start + len(view))
        return len(view)

    def entry(self) -> FileEntry:
        """Returns the checksum; what nobody has read in large parts is read now.

        Raises:
            EOFError: There are not as many bytes.
            OSError: The file cannot be read.
        """
        chunks = range(-(-self._num_bytes // self._chunk_bytes))
        missing = [chunk for chunk in chunks if chunk not in self._digests]
        shares = [missing[first :: self._num_threads] for first in range(self._num_threads)]
        self._together([partial(self._hash, share) for share in shares if share])
        digests = b"".join(self._digests[chunk] for chunk in chunks)
        return FileEntry(self._num_bytes, hashlib.sha256(digests).hexdigest(), self._chunk_bytes)

    def _together(self, tasks: Sequence[Callable[[], None]]) -> None:
        futures = [self._pool.submit(task) for task in tasks[1:]]
        try:
            for mine in tasks[:1]:
                mine()
        finally:
            # The threads write into the caller's memory, which may be freed once we return or
            # raise.
            wait(futures)
        for future in futures:
            future.result()

    def _read(self, view: memoryview, start: int, chunks: range) -> None:
        """Reads some chunks of what begins at `start`, and hashes those that are there whole."""
        for chunk in chunks:
            begin = chunk * self._chunk_bytes
            end = begin + self._chunk_bytes
            part = view[max(0, begin - start) : max(0, end - start)]
            _populate(part)
            _fill(self.fileno(), part, max(begin, start))
            num_hashed = min(self._chunk_bytes, self._num_bytes - begin)
            is_first = chunk == 0 and self._change is not None
            if begin >= start and 0 < num_hashed <= len(part) and not is_first:
                digest = hashlib.sha256(part[:num_hashed]).digest()
                if self._digests.setdefault(chunk, digest) != digest:
                    # The file has changed between two reads, and both were used: no digest will
                    # match an empty one.
                    self._digests[chunk] = b""

    def _hash(self, chunks: Iterable[int]) -> None:
        buffer = memoryview(bytearray(self._chunk_bytes))
        for chunk in chunks:
            begin = chunk * self._chunk_bytes
            part = buffer[: min(self._chunk_bytes, self._num_bytes - begin)]
            _fill(self.fileno(), part, begin)
            if chunk == 0 and self._change is not None:
                self._change(part)
            self._digests[chunk] = hashlib.sha256(part).digest()


def checksum_of(path: Path, entry: FileEntry) -> FileEntry:
    """Returns the checksum of a file, of as many bytes and in such chunks as an entry has.

    Raises:
        EOFError: There are not as many bytes.
        OSError: The file cannot be read.
    """
    with ReadingChecksum(path, entry) as file:
        return file.entry()


def _populate(part: memoryview) -> None:
    """Maps fresh memory in one call rather than by a page fault for each page.

    Page faults are most of the time of reading a cached file. The memory keeps its contents, and on
    a kernel that does not know the call it fails and changes nothing.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(part))
    # `madvise` takes whole pages, so the buffer's ends are left out.
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + len(part)) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_POPULATE_WRITE)


def _fill(descriptor: int, part: memoryview, position: int) -> None:
    filled = 0
    while filled < len(part):
        # `pread` has its own position, so that threads can share the descriptor. It may return less
        # than was asked for.
        got = os.preadv(descriptor, [part[filled:]], position + filled)
        if got == 0:
            raise EOFError(f"there are only {position + filled} bytes")
        filled += got


class ChecksumFile:
    """A file that takes the checksum of what is written to it.

    Args:
        file: What is written to, from its start.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._checksum = Checksum()

    def write(self, data: Any) -> int:
        """Writes all of it."""
        self._checksum.update(data)
        return self._file.write(data)

    def fileno(self) -> int:
        """Flushes the file and returns its descriptor.

        A caller asks for the descriptor in order to sync the file, and torch's DCP does not flush
        its metadata before it does (2.13, `FileSystemWriter.finish`).
        """
        self._file.flush()
        return self._file.fileno()

    def entry(self) -> FileEntry:
        """Returns what has been written."""
        return self._checksum.entry()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
