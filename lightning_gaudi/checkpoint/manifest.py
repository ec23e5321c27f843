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
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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

_MARK = b"lightning_gaudi"
_FORMAT = 1


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
        """What sorts checkpoints, the newest last: by the fit, then by the step within it."""
        return self.began, -1 if self.global_step is None else self.global_step, self.saved


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
    values = json.loads(text)
    files = {name: FileEntry(**entry) for name, entry in values.pop("files").items()}
    known = {name: values[name] for name in Manifest.__dataclass_fields__ if name in values}
    return Manifest(files=files, **known)


def read_folder_manifest(folder: Path) -> Manifest | None:
    """That of a folder; None if it has none.

    Raises:
        DamagedCheckpointError: It was changed.
    """
    path = folder / FOLDER_MANIFEST
    if not path.is_file():
        return None
    found = decode(path.read_bytes(), path)
    if found is None:
        raise DamagedCheckpointError(f"{path} is damaged: it is no manifest.")
    return found


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
