"""Finds the newest checkpoints of a run, whatever files were copied since."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._core.progress import MAX_AHEAD_S
from lightning_gaudi.untrusted import path_inside, printable

from . import sealed_zip
from .errors import ADVICE, DamagedCheckpointError
from .folders import AnyPath
from .leftovers import LATEST
from .manifest import Manifest, read_folder_manifest
from .opening import read_small
from .remote import RemotePath
from .stored_shards import check_stored, find_version, read_stored_manifest
from .torch_dcp.layout import is_sharded_folder
from .verify import check_file, check_folder

_SUFFIX = ".ckpt"

_MAX_NAME = 4096

# When the fit began, its step, and when it was saved: see `Manifest.age`. The time of a file
# alone would not do, since copying a folder changes it.
_Age = tuple[float, int, float]


class Candidate(NamedTuple):
    """A checkpoint that a fit may go on from, as far as its manifest tells."""

    path: AnyPath
    age: _Age
    """What sorts them, the newest last; of those without a manifest when they were written."""
    run: str | None
    """Which run has saved it; None if it has no manifest."""


def whole(checkpoints: Sequence[AnyPath]) -> list[AnyPath]:
    """Returns those checkpoints that are there with all of their bytes, the last one first.

    Checksums are not compared, which loading does; what is damaged is warned of.

    Args:
        checkpoints: Files or folders, in the order in which they were saved.
    """
    return [each for each in reversed(checkpoints) if each.exists() and _is_whole(each)]


def candidates(folders: Iterable[AnyPath], damaged: list[str] | None = None) -> list[Candidate]:
    """Returns what is in folders that a fit may go on from, the newest first.

    Args:
        folders: Those that are not there have none.
        damaged: Gets what is wrong with those that are damaged as far as their ends tell.
    """
    found: list[Candidate] = []
    for path in sorted({path for folder in folders for path in _entries(folder)}, key=str):
        try:
            candidate = _candidate(path)
        except DamagedCheckpointError as error:
            if damaged is not None:
                damaged.append(str(error))
        # Another rank or job may remove it meanwhile, or it may not be ours to read.
        except OSError:
            continue
        else:
            found += [candidate] if candidate is not None else []
    return sorted(found, key=lambda each: each.age, reverse=True)


def fallbacks(damaged: AnyPath) -> list[AnyPath]:
    """Returns checkpoints to use in place of a damaged one that a user chose, the newest first.

    Those are the older ones of the same run in the same folder. Where the damaged one does not tell
    any more what it was, all must be of one run, and were saved before it was written last.
    """
    manifest = read_manifest_if_any(damaged)
    others = [each for each in candidates([damaged.parent]) if each.path != damaged]
    # A link such as `last.ckpt` leads to the damaged file under another name.
    others = [each for each in others if not damaged.exists() or not _is_same(each.path, damaged)]
    if manifest is not None:
        return [
            each.path for each in others if each.run == manifest.run and each.age < manifest.age
        ]
    # Two runs have saved here, and nothing tells of which the damaged one was: to go on from
    # another run would be worse than to stop.
    if len({each.run for each in others}) != 1:
        return []
    try:
        written = damaged.stat().st_mtime
    except OSError:
        return []
    return [each.path for each in others if each.age[-1] <= written]


def read_manifest_if_any(path: AnyPath) -> Manifest | None:
    """Returns what a checkpoint says of itself, if it can be read; nothing is compared."""
    try:
        if isinstance(path, RemotePath):
            tag = find_version(path)
            if tag is not None:
                return read_stored_manifest(path, tag)
            return sealed_zip.inspect(path).manifest
        if not path.is_dir():
            return sealed_zip.inspect(path).manifest
        if is_sharded_folder(path):
            return read_folder_manifest(path)
        if (path / LATEST).is_file():
            return read_folder_manifest(path / read_latest(path))
    except (DamagedCheckpointError, OSError):
        return None
    return None


def read_latest(folder: Path) -> str:
    """Returns the version that a folder of DeepSpeed's names as its latest; empty if it names none.

    Raises:
        DamagedCheckpointError: What it names is not within the folder, or no name.
        OSError: It cannot be read.
    """
    tag: str | None = None
    try:
        tag = read_small(path_inside(folder, LATEST), _MAX_NAME).decode().strip()
        if tag:
            path_inside(folder, tag)
            (folder / tag).stat()
    # A UnicodeDecodeError is a ValueError, too.
    except ValueError as error:
        raise DamagedCheckpointError(
            f"The checkpoint {printable(folder)} is damaged: its file {LATEST!r} names no version "
            f"({printable(error)}). {ADVICE}"
        ) from None
    except FileNotFoundError:
        if tag is None:
            raise  # of `latest`; whoever needs the version says that it is missing
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise DamagedCheckpointError(
            f"The checkpoint {printable(folder)} is damaged: its file {LATEST!r} names no version. "
            f"{ADVICE}"
        ) from None
    return tag


def _is_same(one: AnyPath, other: AnyPath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.samefile(other)
    return one == other


def _entries(folder: AnyPath) -> Iterator[AnyPath]:
    if folder.is_dir():
        yield from (each for each in folder.iterdir() if not each.name.startswith("."))


def _candidate(path: AnyPath) -> Candidate | None:
    """Returns what a path is, if a fit may go on from it."""
    if isinstance(path, RemotePath) and path.suffix not in (_SUFFIX, ".pt"):
        # `is_dir` is a request to the store, and a bucket may have thousands of objects.
        return None
    if path.is_dir():
        is_checkpoint = _is_sharded(path)
        manifest = read_manifest_if_any(path) if is_checkpoint else None
        if manifest is None and is_checkpoint:
            _check_lengths(path)  # says what is wrong with a manifest that is there
    else:
        manifest = None
        is_checkpoint = path.suffix == _SUFFIX
        # A `.pt` file counts only if its manifest says that a fit resumes from it: people keep
        # other things under that suffix.
        if is_checkpoint or path.suffix == ".pt":
            manifest = sealed_zip.inspect(path).manifest
    written = path.stat().st_mtime
    if manifest is not None and manifest.resumes:
        return Candidate(path, _age(manifest, written), manifest.run)
    is_checkpoint = is_checkpoint and manifest is None
    return Candidate(path, (0.0, -1, written), None) if is_checkpoint else None


def _is_sharded(path: AnyPath) -> bool:
    """Returns whether a folder is a checkpoint in shards, of whichever kind."""
    if isinstance(path, RemotePath):
        return find_version(path) is not None
    return is_sharded_folder(path) or (path / LATEST).is_file()


def _age(manifest: Manifest, written: float) -> _Age:
    """Returns the age that a manifest gives, unless that lies in the future.

    A server whose clock was ahead would otherwise have saved the newest checkpoint for ever. Such a
    manifest counts as if it gave no age.
    """
    latest = time.time() + MAX_AHEAD_S
    is_future = manifest.began > latest or manifest.saved > latest
    return (0.0, -1, min(written, latest)) if is_future else manifest.age


def _is_whole(path: AnyPath) -> bool:
    try:
        _check_lengths(path)
    except (DamagedCheckpointError, OSError) as error:
        rank_zero_warn(f"{error} It is left out.")
        return False
    return True


def _check_lengths(path: AnyPath) -> None:
    if not path.is_dir():
        check_file(path, with_checksum=False)
    elif isinstance(path, RemotePath):
        check_stored(path)
    elif is_sharded_folder(path):
        check_folder(path, with_checksum=False)
    else:
        check_folder(path / read_latest(path), with_checksum=False)
