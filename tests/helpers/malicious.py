"""Pickles that run code when they are loaded as usual, in each way that a pickle can.

What they run leaves a file in a folder: nothing else happens.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightning_gaudi.checkpoint.checksum import checksum_of
from lightning_gaudi.checkpoint.manifest import (
    FOLDER_MANIFEST,
    FileEntry,
    read_folder_manifest,
    with_files,
    write_folder_manifest,
)


class Canaries:
    """A folder in which each file is code that has run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def num_executed(self) -> int:
        """How many payloads have run."""
        return len(list(self._folder.iterdir()))

    def path(self, name: str) -> str:
        """Where a payload of a name leaves its trace."""
        return str(self._folder / name)


class _Reducing:
    """Pickles as whatever it was given."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


class Stateful:
    """Touches a file when it gets its state."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        Path(state["path"]).touch()


class Born:
    """Touches a file when it is made."""

    def __new__(cls, path: str) -> Born:
        Path(path).touch()
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)


def _born(path: str) -> Born:
    made = object.__new__(Born)
    made.path = path
    return made


def _nested(path: str) -> bytes:
    file = io.BytesIO()
    torch.save(_Reducing(*system(path)), file)
    return file.getvalue()


def system(path: str) -> Any:
    """What `__reduce__` says to have a shell touch a file."""
    import os

    return os.system, (f"touch {path}",)


OBJECTS: dict[str, Callable[[str], Any]] = {
    "os.system": lambda path: _Reducing(*system(path)),
    "exec": lambda path: _Reducing(exec, (f"open({path!r}, 'w').close()",)),
    "eval": lambda path: _Reducing(eval, (f"open({path!r}, 'w').close()",)),
    "setstate": Stateful,
    "new": _born,
    "nested": lambda path: _Reducing(torch.storage._load_from_bytes, (_nested(path),)),
    "rebuild": lambda path: _Reducing(
        torch._tensor._rebuild_from_type_v2, (*system(path)[:1], object, (f"touch {path}",), {})
    ),
    "state": lambda path: _Reducing(dict, (), None, None, iter([("a", OBJECTS["exec"](path))])),
}
"""Objects that anything can hold, given the file to touch."""


def _text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def _short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


STREAMS: dict[str, Callable[[str], bytes]] = {
    "INST": lambda path: b"\x80\x02(" + _text(f"touch {path}") + b"ios\nsystem\n.",
    "OBJ": lambda path: b"\x80\x02(cos\nsystem\n" + _text(f"touch {path}") + b"o.",
    "protocol 4": lambda path: pickle.dumps(OBJECTS["os.system"](path), 4),
    "dotted name": lambda path: (
        b"\x80\x04"
        + _short("torch")
        + _short("serialization.os.system")
        + b"\x93"
        + _text(f"touch {path}")
        + b"\x85R."
    ),
    "posix": lambda path: b"\x80\x02cposix\nsystem\n" + _text(f"touch {path}") + b"\x85R.",
    "protocol 0": lambda path: pickle.dumps(OBJECTS["os.system"](path), 0),
}
"""Whole pickles, made by hand, given the file to touch."""


def write_stream(stream: bytes, file: Path) -> None:
    """Put a pickle into the form of a file that `torch.save` writes."""
    torch.save({}, file)
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, stream if name.endswith("data.pkl") else data)


def write_legacy(stream: bytes, file: Path) -> None:
    """Put it into the form of torch's files before 1.6."""
    torch.save({}, file, _use_new_zipfile_serialization=False)
    whole = file.read_bytes()
    empty = pickle.dumps({}, 2)
    at = whole.rindex(empty)
    file.write_bytes(whole[:at] + stream + whole[at + len(empty) :])


def write_tar(stream: bytes, file: Path) -> None:
    """Put it into the form of torch's first files."""
    with tarfile.open(file, "w") as archive:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(stream)
            archive.addfile(member, io.BytesIO(stream))


FORMS = {"zip": write_stream, "legacy": write_legacy, "tar": write_tar}
"""How a file holds a pickle."""


def forge_manifest(folder: Path) -> None:
    """Have the checksums of a folder of shards be those of the files that are there now."""
    if (folder / "latest").is_file():
        folder = folder / (folder / "latest").read_text()
    manifest = read_folder_manifest(folder)
    assert manifest is not None
    files = {}
    for name in manifest.files:
        num_bytes = (folder / name).stat().st_size
        files[name] = checksum_of(folder / name, FileEntry(num_bytes, ""))
    (folder / FOLDER_MANIFEST).unlink()
    write_folder_manifest(folder, with_files(manifest, files))
