"""Archives of `torch.save` that are something else, too: to one of the readers, or in their sizes.

A program of TorchScript writes into a file as it is loaded, wherever that file is.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

BEFORE, AFTER = b"safe", b"HACK"
"""What is in the file that a program writes to, before it has run and after."""


class _Writing(torch.nn.Module):
    """Maps a file and writes into it when it gets its state."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.mapped = torch.zeros(4, dtype=torch.uint8)

    @torch.jit.export
    def __getstate__(self):
        return (self.path, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        self.path, self.training = state
        mapped = torch.from_file(self.path, shared=True, size=4, dtype=torch.uint8)
        self.mapped = mapped.copy_(torch.tensor([72, 65, 67, 75], dtype=torch.uint8))

    def forward(self, x):
        return x


def program(target: Path) -> bytes:
    """Returns TorchScript that writes `AFTER` over what is in a file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(_Writing(str(target))), file)
    return file.getvalue()


def plain() -> bytes:
    """Returns what `torch.save` makes of a dict with a tensor."""
    file = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.ones(3)}}, file)
    return file.getvalue()


_EXTRA = struct.pack("<HHI", 1, 64, 0)
"""A zip64 field that says it is longer than it is."""


def _with_false_extra(script: bytes) -> bytes:
    at = script.index(b"PK\x01\x02")
    name, extra = struct.unpack("<HH", script[at + 28 : at + 32])
    start, directory = _split(script)
    at -= len(start)
    entry = directory[at : at + 46 + name + extra]
    longer = entry[:30] + struct.pack("<H", extra + len(_EXTRA)) + entry[32:] + _EXTRA
    return _ended(start, directory[:at] + longer + directory[at + len(entry) :])


def _split(archive: bytes) -> tuple[bytes, bytes]:
    """The records and the directory."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        begin = opened.start_dir
    at = begin
    while archive[at : at + 4] == b"PK\x01\x02":
        at += 46 + sum(struct.unpack("<3H", archive[at + 28 : at + 34]))
    return archive[:begin], archive[begin:at]


def _count(directory: bytes) -> int:
    at = count = 0
    while at < len(directory):
        at += 46 + sum(struct.unpack("<3H", directory[at + 28 : at + 34]))
        count += 1
    return count


def _end(directory: bytes, begin: int) -> bytes:
    count = _count(directory)
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), begin, 0)


def _end64(directory: bytes, begin: int) -> bytes:
    count = _count(directory)
    sizes = (44, 45, 45, 0, 0, count, count, len(directory), begin)
    return struct.pack("<4sQ2H2I4Q", b"PK\6\6", *sizes)


def _ended(start: bytes, directory: bytes) -> bytes:
    return start + directory + _end(directory, len(start))


def _moved(directory: bytes, by: int) -> bytes:
    found, at = bytearray(directory), 0
    while at < len(found):
        (offset,) = struct.unpack("<I", found[at + 42 : at + 46])
        found[at + 42 : at + 46] = struct.pack("<I", offset + by)
        at += 46 + sum(struct.unpack("<3H", found[at + 28 : at + 34]))
    return bytes(found)


def _two_directories(script: bytes, *, is_narrow: bool) -> bytes:
    """A zip64 end for the program; what stands before its locator, or in the end, for tensors."""
    start, directory = _split(script)
    inner, other = _split(plain())
    found = start + directory
    at64 = len(found)
    found += _end64(directory, len(start))
    moved = _moved(other, len(found))
    begin = len(found) + len(inner)
    found += inner + moved + (b"" if is_narrow else _end64(moved, begin))
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at64, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return found + locator + (_end(moved, begin) if is_narrow else end)


def _end_in_comment(script: bytes) -> bytes:
    """Tensors whose comment ends with the end of a program, which torch's reader takes."""
    start, directory = _split(script)
    inner, other = _split(plain())
    end = _end(_moved(directory, 0), len(start))
    whole = start + directory + inner + _moved(other, len(start) + len(directory))
    outer = _end(other, len(whole) - len(other))
    return whole + outer[:-2] + struct.pack("<H", len(end)) + end


def _repacked(script: bytes, change: Callable[[str], str], method: int = 0) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(script)) as old,
        zipfile.ZipFile(file, "w", method) as new,
    ):
        for name in old.namelist():
            new.writestr(change(name), old.read(name))
    return file.getvalue()


DISGUISES: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "false extra field": _with_false_extra,
    "two zip64 ends": lambda script: _two_directories(script, is_narrow=False),
    "two ends": lambda script: _two_directories(script, is_narrow=True),
    "end in a comment": _end_in_comment,
    "compressed": lambda script: _repacked(script, str, zipfile.ZIP_DEFLATED),
    "other case": lambda script: _repacked(
        script, lambda name: name.replace("constants.pkl", "Constants.PKL")
    ),
    "garbage at the end": lambda script: script + b"\0" * 100,
    "wrong disk": lambda script: script[:-18] + b"\1\0" + script[-16:],
    "prefix": lambda script: b"PK\3\4" + b"\0" * 60 + script,
}
"""What is done to a program so that a guard does not see it."""
