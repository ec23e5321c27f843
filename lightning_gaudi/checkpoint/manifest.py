"""What a checkpoint says of itself: how long its files are, their checksums, when it was saved.

A whole file has its manifest within: a zip file, as `torch.save` writes them, may end with a
comment, which nobody else reads. So neither a copy nor a removal can part the two. A folder has
`manifest.json`, which is written when all else is on disk.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lightning_gaudi._core.untrusted import parse_json, path_inside, printable
from lightning_gaudi._version import __version__
from lightning_gaudi.reliability.session import current_session

from .folders import sync

FOLDER_MANIFEST = "manifest.json"
"""The manifest of a folder; the names in it are relative to the folder."""

CHUNK_BYTES = 2**18
"""A checksum is the SHA-256 of those of the chunks of this size, which threads share.

A core's own cache holds one from when it is read until it is hashed.
"""

ADVICE = "Use another checkpoint, or copy it again from where it was saved."

_Value = TypeVar("_Value")

_MARK = b"lightning_gaudi"
_FORMAT = 1

_MAX_BYTES = 64 * 2**20
"""How long the manifest of a folder may be: it takes 200 bytes to tell of a file."""

_CHUNK_BYTES = range(2**16, 2**26 + 1)
"""What a chunk may have: a smaller one makes hashing slow, a larger one takes memory."""

_CLOCKS_S = 86400.0
"""How far the clocks of two machines may differ."""


class DamagedCheckpointError(ValueError):
    """A checkpoint is not what was saved; the message names the file, what it has and should."""


class IncompleteCheckpointError(DamagedCheckpointError, FileNotFoundError):
    """A file of a checkpoint is not there."""


@dataclass(frozen=True)
class FileEntry:
    """A file as it was written."""

    num_bytes: int
    sha256: str
    """The checksum of it all; see `CHUNK_BYTES`."""
    chunk_bytes: int = 4 * 2**20
    """The size of its chunks; manifests that do not tell it have this one."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    files: Mapping[str, FileEntry]
    """By name; that of a whole file, which can be renamed, is empty."""
    epoch: int | None = None
    global_step: int | None = None
    resumes: bool = False
    """Whether a fit can go on from it: it has more than weights."""
    num_ranks: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    """The run, which goes on where a fit resumes from a checkpoint of it."""
    began: float = 0.0
    """When the fit that saved it began, in seconds since 1970."""
    saved: float = 0.0
    """When it was saved."""

    @property
    def age(self) -> tuple[float, int, float]:
        """What sorts checkpoints, the newest last: by the fit, then by the step within it.

        One that claims to be of the future is the oldest: else it would be the newest for ever.
        """
        step = -1 if self.global_step is None else self.global_step
        if max(self.began, self.saved) > time.time() + _CLOCKS_S:
            return 0.0, step, 0.0
        return self.began, step, self.saved


def describe(checkpoint: Mapping[str, Any]) -> Manifest:
    """The manifest of what is about to be saved, without its files.

    Args:
        checkpoint: The Trainer's, or whatever Fabric's user saves.
    """
    is_connected = dist.is_available() and dist.is_initialized()
    session = current_session()
    return Manifest(
        files={},
        epoch=_integer(checkpoint.get("epoch")),
        global_step=_integer(checkpoint.get("global_step")),
        # A Trainer's checkpoint of weights alone has no state of the loops.
        resumes="pytorch-lightning_version" not in checkpoint or "loops" in checkpoint,
        num_ranks=dist.get_world_size() if is_connected else 1,
        versions=_versions(),
        run=session.run,
        began=session.began,
        saved=time.time(),
    )


def with_files(manifest: Manifest, files: Mapping[str, FileEntry]) -> Manifest:
    """The same with the files that were written."""
    return replace(manifest, files=dict(sorted(files.items())), saved=time.time())


def encode(manifest: Manifest) -> bytes:
    """As bytes that tell whether they were changed: the comment of a zip file, or a file."""
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    return b" ".join((_MARK, digest, text, _MARK))


def decode(data: bytes, origin: Path) -> Manifest | None:
    """The manifest that `encode` made these bytes of; None if somebody else made them.

    Raises:
        DamagedCheckpointError: They were changed.
    """
    if not (data.startswith(_MARK) or data.endswith(_MARK)):
        return None
    mark, digest, text = [*data.split(b" ", 2), b"", b""][:3]
    text = text.removesuffix(b" " + _MARK)
    found = hashlib.sha256(text).hexdigest()
    if mark != _MARK or digest != found.encode() or not data.endswith(b" " + _MARK):
        expected = digest.decode(errors="replace")
        raise DamagedCheckpointError(
            f"{origin} is damaged: its manifest has the checksum {found[:16]}, expected "
            f"{expected[:16]}."
        )
    try:
        return _read(parse_json(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedCheckpointError(
            f"{printable(origin)} is damaged: its manifest says what none says "
            f"({type(error).__name__}: {printable(error, max_chars=200)}). {ADVICE}"
        ) from error


def _read(values: Any) -> Manifest:
    """Returns the manifest that a text in JSON says.

    Raises:
        ValueError: A value is not one that `encode` writes.
        AttributeError, KeyError, TypeError: There is a list, a number or nothing for a mapping.
    """
    saved_by: Mapping[str, str] = values.get("versions", {})
    return Manifest(
        files={name: _read_entry(entry) for name, entry in values["files"].items()},
        epoch=_count_or_none(values.get("epoch")),
        global_step=_count_or_none(values.get("global_step")),
        resumes=_of_type(values.get("resumes", False), bool),
        num_ranks=_count(values.get("num_ranks", 1), range(1, 2**32)),
        versions={name: _of_type(version, str) for name, version in saved_by.items()},
        run=_of_type(values.get("run", ""), str),
        began=_time(values.get("began", 0.0)),
        saved=_time(values.get("saved", 0.0)),
    )


def _read_entry(values: Any) -> FileEntry:
    sha256 = _of_type(values["sha256"], str)
    if re.fullmatch("[0-9a-f]{64}", sha256) is None:
        raise ValueError(f"{sha256!r} is no SHA-256")
    chunk_bytes = _count(values.get("chunk_bytes", 4 * 2**20), _CHUNK_BYTES)
    return FileEntry(_count(values["num_bytes"]), sha256, chunk_bytes)


def _of_type(value: Any, kind: type[_Value]) -> _Value:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value


def _count(value: Any, allowed: range = range(2**63)) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise ValueError(f"{value!r} is not a number from {allowed.start} to {allowed.stop - 1}")
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)


def _time(value: Any) -> float:
    """Returns seconds since 1970, up to the year 9999."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2.6e11:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def read_folder_manifest(folder: Path) -> Manifest | None:
    """That of a folder; None if it has none.

    Raises:
        DamagedCheckpointError: It was changed.
    """
    path = folder / FOLDER_MANIFEST
    if not path.is_file():
        return None
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    found = decode(data, path) if len(data) <= _MAX_BYTES else None
    if found is None:
        raise DamagedCheckpointError(f"{printable(path)} is damaged: it is no manifest.")
    for name in found.files:
        _check_name(folder, name)
    return found


def _check_name(folder: Path, name: str) -> None:
    try:
        path_inside(folder, name)
    except ValueError as error:
        raise DamagedCheckpointError(
            f"{printable(folder / FOLDER_MANIFEST)} is damaged: {error} {ADVICE}"
        ) from error


def write_folder_manifest(folder: Path, manifest: Manifest) -> None:
    """Write that of a folder in which all else is on disk.

    Raises:
        OSError: It cannot be written.
    """
    with (folder / FOLDER_MANIFEST).open("xb") as file:
        file.write(encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _versions() -> dict[str, str]:
    found = {"lightning_gaudi": __version__, "torch": torch.__version__}
    for name in ("lightning", "pytorch-lightning"):
        try:
            return {**found, "lightning": importlib.metadata.version(name)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
