"""Checks the directory of an archive that `torch.save` has written against torch's own reader.

Torch's reader allocates what the directory claims as soon as it is made, and a zip file can be
built so that two readers find two different directories in it. So the directory is read here first,
in the only form that `torch.save` writes: one directory, at the end of the file, with each of its
records whole within the file. Then torch's reader, which loads the values, must see the same.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import torch

from .errors import ExceededError, RefusedError

# Signatures and fixed lengths of the structures of a zip file. Source: PKWARE, APPNOTE.TXT
# 6.3.10, sections 4.3.7 to 4.3.16.
_END = b"PK\x05\x06"
_END_BYTES = 22
_END64 = b"PK\x06\x06"
_END64_BYTES = 56
_LOCATOR = b"PK\x06\x07"
_LOCATOR_BYTES = 20
_ENTRY = b"PK\x01\x02"
_ENTRY_BYTES = 46
_HEADER_BYTES = 30
_MAX_COMMENT_BYTES = 65535
# A field with this value has no room for its number, which then stands in the zip64 structures.
_MAX_32, _MAX_16 = 0xFFFFFFFF, 0xFFFF

MAX_EXCESS_BYTES = 2**29
"""How many bytes a file may expand to beyond its own length, as by compressed records."""

MAX_RECORDS = 10**6
"""How many records are read; `torch.save` writes one for each storage."""


class DirectoryError(ValueError):
    """Says what is wrong with a directory; the caller, who knows the file, names it."""


class Directory(NamedTuple):
    """The records of an archive."""

    sizes: dict[str, int]
    """The size of each record, by its name below the archive's folder."""
    is_stored: bool
    """Whether all records are in the file as they are, so that they can be mapped."""


def read_directory(file: IO[bytes]) -> Directory:
    """Returns the records of an archive.

    Args:
        file: At the beginning of the archive, which ends where the file does.

    Raises:
        DirectoryError: It is not what `torch.save` writes.
        ExceededError: It claims more than the file can hold.
    """
    start = file.tell()
    size = file.seek(0, 2) - start
    begin, length, count = _find(file, start, size)
    file.seek(start + begin)
    data = file.read(length)
    sizes: dict[str, int] = {}
    seen: set[str] = set()
    is_stored = True
    for name, num_bytes, method in _entries(data, count, begin):
        is_stored &= method == 0
        # Torch's reader (miniz) ignores case when it looks up a name: it would take both for one.
        if name.casefold() in seen:
            raise DirectoryError("it has two records of one name")
        seen.add(name.casefold())
        sizes[name] = num_bytes
    folders = {name.partition("/")[0] for name in sizes}
    # `torch.save` puts all records below one folder, whose name torch's reader takes from the
    # first.
    if len(folders) != 1 or not all("/" in name for name in sizes):
        raise DirectoryError("its records are not in one folder")
    _check_total(sum(sizes.values()), size)
    names = {name.partition("/")[2]: num_bytes for name, num_bytes in sizes.items()}
    return Directory(names, is_stored)


def check_reader(reader: Any, sizes: dict[str, int]) -> None:
    """Compares what torch's reader sees with the directory, and refuses a TorchScript program.

    Args:
        reader: Torch's, of the file that the directory was read from.
        sizes: Those of `Directory`.

    Raises:
        DirectoryError: It sees something else.
        RefusedError: The archive holds a program of TorchScript.
    """
    names = reader.get_all_records()
    found = {*names, *sizes}
    # `torch.load` runs `torch.jit.load` on an archive with this record. The reader is asked, too,
    # since it looks names up by rules of its own.
    if any(name.casefold().rpartition("/")[2] == "constants.pkl" for name in found) or (
        reader.has_record("constants.pkl")
    ):
        raise RefusedError("a program of TorchScript")
    if names != [*sizes]:
        raise DirectoryError("its directory reads in two ways")
    size_of = getattr(reader, "get_record_size", None)  # torch 2.6 does not have it
    if size_of is not None and any(size_of(name) != sizes[name] for name in names):
        raise DirectoryError("its directory reads in two ways")


def _find(file: IO[bytes], start: int, size: int) -> tuple[int, int, int]:
    """Returns where the directory begins, its length, and how many entries it has."""
    file.seek(start + max(0, size - _END_BYTES - _MAX_COMMENT_BYTES))
    # The end record is followed by a comment of up to 65,535 bytes, in which our manifest lies.
    tail = file.read(_END_BYTES + _MAX_COMMENT_BYTES)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise DirectoryError("its end is missing")
    fields = struct.unpack("<4H2IH", tail[at + 4 : at + _END_BYTES])
    disk, first_disk, here, count, length, begin, comment = fields
    end = size - len(tail) + at
    # With another length the signature may be one that stands within the comment, and another
    # reader would find another end. `torch.save` writes a single volume.
    if comment != len(tail) - at - _END_BYTES or (disk, first_disk) != (0, 0) or here != count:
        raise DirectoryError("its end is damaged")
    found64 = _find64(file, start, end)
    if found64 is not None:
        end, wide = found64
        narrow = ((count, _MAX_16), (length, _MAX_32), (begin, _MAX_32))
        for (value, limit), long in zip(narrow, wide, strict=True):
            # Which of the two a reader believes is up to it, so both must say the same.
            if value not in (limit, long):
                raise DirectoryError("its two ends differ")
        count, length, begin = wide
    # Nothing may lie between the directory and the end: a reader that looks from the end backwards
    # would find it there, and one that believes `begin` would not. The last condition keeps `count`
    # from being more than could be written in `length` bytes.
    if begin + length != end or count > MAX_RECORDS or count * _ENTRY_BYTES > length:
        raise DirectoryError("its directory is not where its end says")
    return begin, length, count


def _find64(file: IO[bytes], start: int, end: int) -> tuple[int, tuple[int, int, int]] | None:
    """Returns where the end of a long archive is, and its count, length and begin."""
    if end < _LOCATOR_BYTES:
        return None
    file.seek(start + end - _LOCATOR_BYTES)
    locator = file.read(_LOCATOR_BYTES)
    if not locator.startswith(_LOCATOR):
        return None
    disk, at, num_disks = struct.unpack("<IQI", locator[4:])
    if disk != 0 or num_disks != 1 or at + _END64_BYTES + _LOCATOR_BYTES != end:
        raise DirectoryError("its end is damaged")
    file.seek(start + at)
    record = file.read(_END64_BYTES)
    length_here, _, _, disk, first_disk, here, count, length, begin = struct.unpack(
        "<Q2H2I4Q", record[4:]
    )
    if not record.startswith(_END64) or length_here != _END64_BYTES - 12:
        raise DirectoryError("its end is damaged")
    if (disk, first_disk) != (0, 0) or here != count:
        raise DirectoryError("its end is damaged")
    return at, (count, length, begin)


def _entries(data: bytes, count: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yields the name, size and method of each record; what lies behind `end` is no record."""
    at = 0
    for _ in range(count):
        # Bounded by `data`, whatever `count` says: a length in an entry cannot lead out of it.
        entry = data[at : at + _ENTRY_BYTES]
        if len(entry) < _ENTRY_BYTES or not entry.startswith(_ENTRY):
            raise DirectoryError("its directory is damaged")
        flags, method = struct.unpack("<2H", entry[8:12])
        packed, size, *lengths = struct.unpack("<2I3H", entry[20:34])
        (offset,) = struct.unpack("<I", entry[42:46])
        at += _ENTRY_BYTES
        name, extra = data[at : at + lengths[0]], data[at + lengths[0] : at + sum(lengths[:2])]
        at += sum(lengths)
        size, packed, offset = _widened(extra, size, packed, offset)
        # Bit 0 says encrypted; method 0 is stored, 8 is deflate. Torch knows no other.
        if flags & 1 or method not in (0, 8) or (method == 0 and size != packed):
            raise DirectoryError("a record of it is neither stored nor compressed as usual")
        if at > len(data) or offset + _HEADER_BYTES + len(name) + packed > end:
            raise DirectoryError("a record of it is not within the file")
        yield _text(name), size, method
    if at != len(data):
        raise DirectoryError("its directory is damaged")


def _text(name: bytes) -> str:
    try:
        found = name.decode()
    except UnicodeDecodeError:
        raise DirectoryError("the name of a record is no text") from None
    if not found or "\0" in found or len(found) > 400:
        raise DirectoryError("a record has no name as torch gives them")
    return found


def _widened(extra: bytes, *values: int) -> list[int]:
    """Returns an entry's fields; those without room in it are in its extra field, in order."""
    found = list(values)
    missing = [number for number, value in enumerate(found) if value == _MAX_32]
    if not missing:
        return found
    at, wide = 0, None
    while at + 4 <= len(extra):
        kind, length = struct.unpack("<2H", extra[at : at + 4])
        # Extra field 1 is zip64's. It holds only those numbers that the entry has no room for, in
        # this order: size, packed size, offset.
        if kind == 1 and wide is None:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    if wide is None or len(wide) < 8 * len(missing) or at != len(extra):
        raise DirectoryError("the size of a record is missing")
    for place, number in enumerate(missing):
        (found[number],) = struct.unpack("<Q", wide[8 * place : 8 * place + 8])
    return found


def _check_total(claimed: int, size: int) -> None:
    if claimed > size + MAX_EXCESS_BYTES:
        raise ExceededError(f"records of {claimed:,} bytes in a file of {size:,}")


def open_archive(file: IO[bytes]) -> tuple[Any, Directory]:
    """Returns torch's reader of an open file, and what it has; see `check_reader`.

    Raises:
        DirectoryError: It is not what `torch.save` writes.
        ExceededError: It claims more than the file can hold.
        RefusedError: It holds a program of TorchScript.
        RuntimeError: What torch's reader raises of a file that is damaged.
    """
    start = file.tell()
    directory = read_directory(file)
    file.seek(start)
    try:
        reader = torch._C.PyTorchFileReader(file)
    except OSError as error:
        # Python's own seek refuses a negative position with EINVAL, which torch passes on.
        if error.errno != errno.EINVAL:
            raise
        raise DirectoryError("a record of it is before its beginning") from None
    check_reader(reader, directory.sizes)
    return reader, directory
