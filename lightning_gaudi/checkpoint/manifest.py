"""The manifest of a checkpoint: the lengths and checksums of its files, and when it was saved.

A single file carries its manifest inside: a zip file, as `torch.save` writes it, may end with a
comment, which other readers ignore. So neither copying nor removing can separate the two. A folder
has `manifest.json`, which is written when all other files are on disk.
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
from typing import Any

import torch
import torch.distributed as dist

from lightning_gaudi._core.progress import current_session
from lightning_gaudi._version import __version__
from lightning_gaudi.untrusted import parse_json, path_inside, printable

from .errors import ADVICE, DamagedCheckpointError
from .folders import sync

FOLDER_MANIFEST = "manifest.json"
"""The manifest of a folder; the names in it are relative to the folder."""

CHUNK_BYTES = 2**18
"""The size of a chunk. A checksum is the SHA-256 of the chunks' digests, which threads share.

A chunk fits into a core's own cache, where it stays from when it is read until it is hashed.
"""

_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 2**16, 2**26
"""The sizes that are accepted. A file of tiny chunks has more digests than fit into memory."""

MAX_MANIFEST_BYTES = 2**26
"""The longest manifest that is read; that of ten thousand files has a hundredth of it."""

_MAX_TEXT = 1000

_MARK = b"lightning_gaudi"
_FORMAT = 1


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
    """The files by name. A single file can be renamed, so its name here is empty."""
    epoch: int | None = None
    global_step: int | None = None
    resumes: bool = False
    """Whether a fit can resume from it, which has more than weights."""
    num_ranks: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    """The run, which a fit that resumes from one of its checkpoints continues."""
    began: float = 0.0
    """When the fit that saved it began, in seconds since 1970."""
    saved: float = 0.0
    """When it was saved."""

    @property
    def age(self) -> tuple[float, int, float]:
        """The key by which checkpoints are sorted, the newest last: by fit, then by step."""
        return self.began, -1 if self.global_step is None else self.global_step, self.saved


def describe(checkpoint: Mapping[str, Any]) -> Manifest:
    """Returns the manifest of what is about to be saved, without its files.

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
    """Returns a manifest with the files that were written."""
    return replace(manifest, files=dict(sorted(files.items())), saved=time.time())


def encode(manifest: Manifest) -> bytes:
    """Returns a manifest as bytes with a checksum, for the comment of a zip file or for a file."""
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    # The mark stands at both ends, so that a manifest which lost either end is known for a damaged
    # one and not for a stranger's comment.
    return b" ".join((_MARK, digest, text, _MARK))


def decode(data: bytes, origin: object) -> Manifest | None:
    """Returns the manifest that `encode` turned into these bytes; None if they are no manifest.

    Raises:
        DamagedCheckpointError: They were changed, or are not the JSON of a manifest.
    """
    if not (data.startswith(_MARK) or data.endswith(_MARK)):
        return None
    mark, digest, text = [*data.split(b" ", 2), b"", b""][:3]
    text = text.removesuffix(b" " + _MARK)
    found = hashlib.sha256(text).hexdigest()
    if mark != _MARK or digest != found.encode() or not data.endswith(b" " + _MARK):
        expected = printable(digest.decode(errors="replace")[:16])
        raise DamagedCheckpointError(
            f"{printable(origin)} is damaged: its manifest has the checksum {found[:16]}, expected "
            f"{expected}."
        )
    try:
        return _manifest(parse_json(text))
    except ValueError as error:
        raise DamagedCheckpointError(
            f"{printable(origin)} is damaged: its manifest cannot be read ({printable(error)}). "
            f"{ADVICE}"
        ) from None


def _manifest(values: Any) -> Manifest:
    """Returns the manifest that JSON describes.

    Raises:
        ValueError: It does not describe one.
    """
    _check(isinstance(values, dict) and isinstance(values.get("files"), dict), "files")
    kinds = {
        "epoch": lambda value: value is None or _is_count(value, least=-(2**62)),
        "global_step": lambda value: value is None or _is_count(value, least=-(2**62)),
        "resumes": lambda value: isinstance(value, bool),
        "num_ranks": lambda value: _is_count(value, least=1),
        "versions": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
        "run": _is_text,
        "began": _is_time,
        "saved": _is_time,
    }
    # Unknown names are left out, so that a later release may add some.
    known = {name: values[name] for name in kinds if name in values}
    for name, value in known.items():
        _check(kinds[name](value), name)
    return Manifest({name: _entry(each) for name, each in values["files"].items()}, **known)


def _entry(values: Any) -> FileEntry:
    _check(isinstance(values, dict) and values.keys() <= {*FileEntry.__dataclass_fields__}, "files")
    _check(_is_count(values.get("num_bytes")), "num_bytes")
    digest = values.get("sha256")
    _check(isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None, "sha256")
    chunk_bytes = values.get("chunk_bytes", _MIN_CHUNK_BYTES)
    is_chunk = _is_count(chunk_bytes, least=_MIN_CHUNK_BYTES) and chunk_bytes <= _MAX_CHUNK_BYTES
    _check(is_chunk, "chunk_bytes")
    return FileEntry(**values)


def _is_count(value: Any, least: int = 0) -> bool:
    # `True` is an instance of `int`, too.
    return type(value) is int and least <= value < 2**62


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**62


def _check(is_so: bool, name: str) -> None:
    if not is_so:
        raise ValueError(f"its {name!r} is missing or of another type")


def read_folder_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest of a folder; None if it has none.

    Raises:
        DamagedCheckpointError: It was changed, or leads out of the folder.
    """
    from .opening import read_small  # which knows of damage

    path = folder / FOLDER_MANIFEST
    if not path.is_file() and not path.is_symlink():
        return None
    try:
        path_inside(folder, FOLDER_MANIFEST)
    except ValueError as error:
        raise DamagedCheckpointError(f"The checkpoint {printable(folder)}: {error}") from None
    found = decode(read_small(path, MAX_MANIFEST_BYTES), path)
    if found is None:
        raise DamagedCheckpointError(f"{printable(path)} is damaged: it is not a manifest.")
    return found


def write_folder_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest of a folder in which all other files are on disk.

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
