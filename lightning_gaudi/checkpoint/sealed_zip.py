"""Single files with a manifest in the comment at the end of the zip that `torch.save` writes.

    local header of data.pkl, with padding    its first 8 bytes: the length of the whole file
    records of data.pkl, the storages, ...
    directory of the records
    end record, 22 bytes
    comment: the manifest                     checksum of all before it

The length also stands at the start, since a file that was cut short has lost its end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any

from lightning_gaudi.untrusted import printable

from .checksum import Checksum, ReadingChecksum
from .errors import ADVICE, DamagedCheckpointError
from .folders import AnyPath
from .manifest import FileEntry, Manifest, decode, encode, with_files
from .remote import opened

_START = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END_BYTES = 22
_MAX_COMMENT_BYTES = 65535

# torch pads the header of a record, so that its data begin at a multiple of 64: that of the first
# record always has 14 bytes to spare, if `torch.save` got a file and not a path.
_PADDING = 46
_PADDING_START = b"FB\x0e\x00" + b"Z" * 14
_SLOT = slice(_PADDING + 4, _PADDING + 12)
_EMPTY_SLOT = b"Z" * 8


class SealingFile:
    """A file for `torch.save` to write to, which `seal` completes with a manifest.

    Args:
        file: What is written to, from its start.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._checksum = Checksum()
        self._tail = b""
        self._head = b""

    def write(self, data: Any) -> int:
        """Writes all but the last 22 bytes, which may be the end record of the zip file."""
        view = memoryview(data).cast("B")
        # The start is kept to see in `seal` whether the padding is where it is expected.
        if len(self._head) < _SLOT.stop + 6:
            self._head += bytes(view[: _PADDING + len(_PADDING_START) - len(self._head)])
        if len(view) < _END_BYTES:
            joined = self._tail + bytes(view)
            self._pass_on(memoryview(joined)[:-_END_BYTES])
            self._tail = joined[-_END_BYTES:]
        else:
            self._pass_on(self._tail)
            self._pass_on(view[:-_END_BYTES])
            self._tail = bytes(view[-_END_BYTES:])
        return len(view)

    def flush(self) -> None:
        """Does nothing, since the end is not known yet."""

    def seal(self, manifest: Manifest) -> None:
        """Writes the end record with the manifest as its comment, and the length at the start.

        Args:
            manifest: Of the checkpoint, without files.
        """
        assert self._tail.startswith(_END), "torch.save has not written a zip file"
        # The last two bytes are the length of the comment, which is replaced.
        assert self._tail.endswith(b"\0\0"), "the zip file has a comment already"
        self._pass_on(self._tail[:-2])
        entry = self._checksum.entry()
        comment = encode(with_files(manifest, {"": entry}))
        self._file.write(struct.pack("<H", len(comment)) + comment)
        # A store takes an object as a stream, which cannot go back: such a file has no length at
        # its start.
        if self._head[_PADDING:] == _PADDING_START and self._file.seekable():
            self._file.seek(_SLOT.start)
            self._file.write(struct.pack("<Q", entry.num_bytes + 2 + len(comment)))

    def _pass_on(self, data: Any) -> None:
        self._checksum.update(data)
        # A raw file may write less than it was given.
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view) :]


@dataclass(frozen=True)
class Inspected:
    """What the two ends of a file tell about it."""

    path: AnyPath
    num_bytes: int
    is_zip: bool
    manifest: Manifest | None

    @property
    def entry(self) -> FileEntry | None:
        """The manifest's entry for the file, if it has a manifest."""
        return None if self.manifest is None else self.manifest.files[""]


def inspect(path: AnyPath) -> Inspected:
    """Reads both ends of a file that should be a checkpoint.

    Raises:
        DamagedCheckpointError: It is a zip file of which a part is missing.
        OSError: It cannot be read.
    """
    with opened(path) as file:
        return inspect_open(file, path)


def inspect_open(file: IO[bytes], path: AnyPath) -> Inspected:
    """Does as `inspect` for an open file, which is at its beginning afterwards."""
    file.seek(0)
    head = file.read(_SLOT.stop)
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_BYTES - _MAX_COMMENT_BYTES))
    tail = file.read(_END_BYTES + _MAX_COMMENT_BYTES)
    file.seek(0)
    return _inspect(path, head, tail, size)


def inspect_bytes(data: bytes, path: AnyPath) -> Inspected:
    """Does as `inspect` for a file in memory."""
    return _inspect(path, data[: _SLOT.stop], data[-_END_BYTES - _MAX_COMMENT_BYTES :], len(data))


def _inspect(path: AnyPath, head: bytes, tail: bytes, size: int) -> Inspected:
    start = tail.rfind(_END)
    end = tail[start:] if start >= 0 else b""
    is_ended = len(end) >= _END_BYTES and struct.unpack("<H", end[20:22])[0] == len(end) - 22
    manifest = decode(end[_END_BYTES:], path) if is_ended else None
    if manifest is not None and [*manifest.files] != [""]:
        raise _cut(path, "its manifest is that of a folder")
    # Compared before the end is missed: it tells by how much the file is too short.
    expected = _length(head)
    if expected not in (None, size):
        raise _cut(path, f"{size:,} bytes of {expected:,}")
    if head.startswith(_START) and not is_ended:
        what = f"the end of it is missing or damaged, and {size:,} bytes are there"
        raise _cut(path, f"{what} of {expected:,}" if expected else what)
    if size == 0:
        raise _cut(path, "it has 0 bytes")
    if manifest is not None:
        needed = manifest.files[""].num_bytes + 2 + len(end) - _END_BYTES
        if needed != size or not head.startswith(_START):
            raise _cut(path, f"{size:,} bytes of {needed:,}")
    return Inspected(path, size, head.startswith(_START), manifest)


def reading(file: IO[bytes], expected: FileEntry) -> ReadingChecksum:
    """Returns a file that takes the checksum of what is read from it; see `compare`.

    Args:
        file: The open file that `inspect_open` has looked at; whoever has opened it closes it.
        expected: What its manifest tells of it.

    Raises:
        OSError: It cannot be read.
    """
    return ReadingChecksum(file, expected, _empty_slot)


def checksum_in_memory(data: bytes, expected: FileEntry) -> FileEntry:
    """Returns the checksum of a file in memory, with the bytes and chunks that an entry has."""
    checksum, head = Checksum(expected.chunk_bytes), bytearray(data[: _SLOT.stop])
    _empty_slot(memoryview(head))
    checksum.update(head)
    checksum.update(memoryview(data)[_SLOT.stop : expected.num_bytes])
    return checksum.entry()


def compare(path: AnyPath, actual: FileEntry, expected: FileEntry) -> None:
    """Compares all of a file with its manifest.

    Raises:
        DamagedCheckpointError: They differ.
    """
    if actual != expected:
        raise DamagedCheckpointError(
            f"{printable(path)} is damaged: its {expected.num_bytes:,} bytes have the SHA-256 "
            f"{actual.sha256[:16]}, expected {expected.sha256[:16]}. {ADVICE}"
        )


def _empty_slot(start: memoryview) -> None:
    """Replaces the length at the start by the padding that the checksum was taken of."""
    if _length(start[: _SLOT.stop].tobytes()) is not None:
        start[_SLOT] = _EMPTY_SLOT


def _length(head: bytes) -> int | None:
    """Returns the length that a file has at its start; None if it has none."""
    padding = head[_PADDING : _PADDING + 4]
    is_ours = len(head) >= _SLOT.stop and padding == _PADDING_START[:4]
    if not is_ours or head[_SLOT] == _EMPTY_SLOT:
        return None
    return int(struct.unpack("<Q", head[_SLOT])[0])


def _cut(path: AnyPath, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"{printable(path)} is cut short or damaged: {what}. {ADVICE}")
