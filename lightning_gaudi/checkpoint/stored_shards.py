"""Sharded checkpoints at an address: several objects, which a store shows one by one.

    s3://bucket/run/last.ckpt/
        latest                  names the version: written when all of it is there, in one step
        checkpoint-1764300000/  the files that a folder on a disk has, and their manifest
        zero_to_fp32.py         DeepSpeed's own tool

DeepSpeed lays out its folders like this, so what is copied to a disk can be loaded there. Each rank
writes its files straight to the store. Loading needs local files: see `fetched`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from pathlib import Path

from lightning.fabric.utilities.types import _PATH

from lightning_gaudi._core.collectives import gather_objects, on_rank_zero, raise_together
from lightning_gaudi.untrusted import path_inside, printable

from .errors import ADVICE, DamagedCheckpointError, IncompleteCheckpointError, damage_on_all_ranks
from .folders import place_of
from .leftovers import LATEST, TOOLS
from .manifest import FOLDER_MANIFEST, MAX_MANIFEST_BYTES, Manifest, decode, encode
from .remote import RemotePath
from .space import mib
from .torch_dcp.layout import METADATA, REST, is_sharded_folder

_TAG = re.compile(r"(?!\.{1,2}$)[\w.-]{1,255}")
_VERSION = re.compile(r"checkpoint-\d{18,20}")
"""Names that `new_version` gives; others of this form, such as checkpoint-500, are shorter."""
_COPIED = (METADATA, REST, FOLDER_MANIFEST)
"""Files beside the versions, where a folder of torch's shards was copied to the address."""

_SCRATCH = "lightning-gaudi-shards-"
_MIN_AGE_S = 60.0
"""How old an unlocked folder must be to be removed: its maker may be about to lock a new one."""


def new_version() -> str:
    """Returns a new name; a store has no locks, so versions cannot be counted safely."""
    return f"checkpoint-{time.time_ns()}"


def publish(place: RemotePath, tag: str, manifest: Manifest | None) -> None:
    """Makes this version the checkpoint, then removes what was at the address before.

    Args:
        place: The checkpoint.
        tag: The version, all of whose files are in the store.
        manifest: What it says of itself.

    Raises:
        OSError: It cannot be; the checkpoint is what it was.
    """
    before = find_version_if_any(place)
    if manifest is not None:
        (place / tag / FOLDER_MANIFEST).write(lambda file: file.write(encode(manifest)))
    # The one step that makes the version count. All before it can be repeated, and what follows
    # only removes.
    (place / LATEST).write(lambda file: file.write(tag.encode()))
    with contextlib.suppress(OSError):
        # Another strategy may have saved a single file under this address.
        if place.is_file():
            place.unlink()
        _remove_parts(place, before, keep=(tag, LATEST, *TOOLS))


def discard(place: RemotePath, tag: str) -> None:
    """Removes an incomplete version as far as the store allows."""
    with contextlib.suppress(OSError):
        (place / tag).remove()


def remove_stored(place: RemotePath) -> None:
    """Removes a checkpoint of any kind."""
    # `latest` first: without it the rest, which an interrupted removal leaves, is no checkpoint.
    with contextlib.suppress(FileNotFoundError):
        (place / LATEST).unlink()
    with contextlib.suppress(FileNotFoundError):
        place.remove()


def remove_shards(place: RemotePath) -> None:
    """Removes the shards at an address once a single file has taken their place.

    Other objects below the address stay, since it may be the folder of a whole run.

    Raises:
        OSError: The store does not answer, or refuses.
    """
    if not place.is_dir() or (tag := find_version_if_any(place)) is None:
        return
    with contextlib.suppress(FileNotFoundError):
        (place / LATEST).unlink()
    _remove_parts(place, tag)


def _remove_parts(place: RemotePath, tag: str | None, keep: Collection[str] = ()) -> None:
    """Removes the parts of a sharded checkpoint, and nothing else that lies beside them.

    Args:
        place: The checkpoint.
        tag: The version that counted.
        keep: What stays.
    """
    # The address may be the folder of a run, so only names that saves give are removed.
    for each in list(place.iterdir()):
        is_part = each.name in (*_COPIED, *TOOLS, tag) or each.suffix == ".distcp"
        if (is_part or _VERSION.fullmatch(each.name)) and each.name not in keep:
            each.remove()


def kept(place: RemotePath) -> str:
    """Returns a sentence that the earlier checkpoint is intact, if there is one."""
    try:
        has_one = find_version_if_any(place) is not None or place.is_file()
    except OSError:
        has_one = False
    return " The checkpoint that was there before is intact." if has_one else ""


def find_version(place: RemotePath) -> str | None:
    """Returns the version of a sharded checkpoint that counts; None if there are no shards.

    It is empty if the files are in no version, as in a folder of torch's shards that was copied.

    Raises:
        DamagedCheckpointError: Its file `latest` names no version.
        OSError: The store does not answer.
    """
    try:
        data = (place / LATEST).read_small(4096)
    # Some file systems of fsspec raise the last two if the address is a file.
    except (FileNotFoundError, NotADirectoryError, FileExistsError):
        return "" if any((place / name).is_file() for name in (METADATA, REST)) else None
    tag = data.decode(errors="replace").strip()
    # The tag becomes part of a path, so it must not lead out of the checkpoint.
    if not _TAG.fullmatch(tag):
        raise DamagedCheckpointError(
            f"The checkpoint {place} is damaged: its file {LATEST!r} names no version "
            f"({printable(repr(tag), max_chars=100)}). {ADVICE}"
        )
    return tag


def find_version_if_any(place: RemotePath) -> str | None:
    """Returns what `find_version` does, and None also if `latest` names no version.

    Raises:
        OSError: The store does not answer.
    """
    try:
        return find_version(place)
    except DamagedCheckpointError:
        return None


def read_stored_manifest(place: RemotePath, tag: str) -> Manifest | None:
    """Returns the manifest of a version; None if it has none.

    Raises:
        DamagedCheckpointError: It was changed.
        OSError: The store does not answer.
    """
    path = _version(place, tag) / FOLDER_MANIFEST
    try:
        data = path.read_small(MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    found = decode(data, path)
    if found is None:
        raise DamagedCheckpointError(f"{path} is damaged: it is not a manifest.")
    return found


def check_stored(place: RemotePath) -> None:
    """Compares the lengths of a version's objects with its manifest, without reading them.

    Raises:
        IncompleteCheckpointError: One is not there, or nothing is; names all that are not whole.
        DamagedCheckpointError: One is not what was saved.
        OSError: The store does not answer.
    """
    tag = find_version(place)
    version = None if tag is None else _version(place, tag)
    sizes = {} if version is None or not version.is_dir() else version.sizes()
    manifest = read_stored_manifest(place, tag) if tag is not None and sizes else None
    problems = [] if sizes else ["its files are missing"]
    for name, entry in manifest.files.items() if manifest is not None else ():
        if name not in sizes:
            problems.append(f"{printable(name)} is missing")
        elif sizes[name] != entry.num_bytes:
            problems.append(f"{printable(name)} has {sizes[name]:,} bytes of {entry.num_bytes:,}")
    if problems:
        is_missing = any(each.endswith("missing") for each in problems)
        kind = IncompleteCheckpointError if is_missing else DamagedCheckpointError
        raise kind(f"The checkpoint {place} is damaged: {'; '.join(problems)}. {ADVICE}")


@contextlib.contextmanager
def fetched(path: _PATH, *, is_alone: bool = False) -> Iterator[_PATH]:
    """Yields a sharded checkpoint as a local folder; any other checkpoint is passed through.

    All ranks call it, unless `is_alone`. Of those that share a folder for temporary files one
    downloads, and the others wait for it. The folder is removed after the block.

    Args:
        path: A local path, or an address that fsspec knows.
        is_alone: Whether this process is the only one that asks.

    Yields:
        A folder of torch's shards, or one of DeepSpeed's; or `path`.

    Raises:
        DamagedCheckpointError: What the address has is not what was saved.
        OSError: The store does not answer, or there is no room; names the address. So does
            what the block raises.
    """
    place = place_of(path)
    if isinstance(place, Path):
        yield _unwrapped(place) or path
        return
    if str(path).startswith(("http:", "https:")):
        yield path
        return
    once: Callable[..., tuple[str | None, str]] = (lambda do: do()) if is_alone else on_rank_zero
    together = nullcontext if is_alone else damage_on_all_ranks
    with together():
        # Rank 0 decides for all: another rank might see another version a moment later, and ranks
        # of one machine must agree on the folder.
        tag, token = once(lambda: (find_version(place), uuid.uuid4().hex))
    if tag is None:
        yield path
        return
    folder = _temporary(token)
    error: Exception | None = None
    with contextlib.ExitStack() as held:
        try:
            # True on the one rank of each machine that made the folder.
            if held.enter_context(_made(folder)):
                _download(place, tag, folder)
        except Exception as caught:
            error = caught
        if error is not None and is_alone:
            raise error
        if not is_alone:
            with damage_on_all_ranks():
                raise_together(error)
        try:
            yield _unwrapped(folder) or folder
        except (OSError, ValueError) as caught:
            _name(caught, str(folder), str(place))
            raise
        if not is_alone:
            # The rank that made the folder removes it, and others may still be reading.
            gather_objects(None)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a local folder that is removed after the block; if killed, by a later process."""
    folder = _temporary(uuid.uuid4().hex)
    with _made(folder):
        yield folder


def _version(place: RemotePath, tag: str) -> RemotePath:
    return place / tag if tag else place


def _unwrapped(folder: Path) -> Path | None:
    """Returns the version of torch's shards that the `latest` of a folder names; else None."""
    if is_sharded_folder(folder) or not (folder / LATEST).is_file():
        return None
    # `candidates` imports this module.
    from .candidates import read_latest

    tag = read_latest(folder)
    return folder / tag if tag and is_sharded_folder(folder / tag) else None


def _temporary(token: str) -> Path:
    return Path(tempfile.gettempdir(), f"{_SCRATCH}{token}")


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[bool]:
    """Makes a folder and removes it after the block; yields False if it is another process's.

    The folder is locked during the block. Unlocked ones of earlier processes are removed first.
    """
    for other in folder.parent.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            _remove_unless_held(other)
    try:
        # Only this user may read it: it lies in a folder that all share.
        folder.mkdir(mode=0o700)
    except FileExistsError:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_unless_held(folder: Path) -> None:
    """Removes a folder that a killed process of this user has left.

    Raises:
        OSError: Another process holds it, it cannot be opened, or there are no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _MIN_AGE_S:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _download(place: RemotePath, tag: str, folder: Path) -> None:
    version = _version(place, tag)
    try:
        sizes = version.sizes()
    except FileNotFoundError:
        raise IncompleteCheckpointError(
            f"The checkpoint {place} is damaged: its version {tag} is missing. {ADVICE}"
        ) from None
    target = folder / tag if tag else folder
    try:
        files = {name: path_inside(target, name) for name in sizes}
    except ValueError as error:
        raise DamagedCheckpointError(f"The checkpoint {place} is damaged: {error}") from None
    needed, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"{place} has {mib(needed)} in shards, which are read from a disk, and "
            f"{folder.parent} has {mib(free)} free. Set TMPDIR to a folder with more room."
        )
    target.mkdir(exist_ok=True)
    version.download(files)
    # Without `latest` a folder of DeepSpeed's would have no version to load.
    if tag:
        (folder / LATEST).write_text(tag)


def _name(error: Exception, local: str, address: str) -> None:
    """Replaces the temporary path in an error by the address that the file came from."""
    error.args = tuple(
        each.replace(local, address) if isinstance(each, str) else each for each in error.args
    )
    if isinstance(error, OSError) and isinstance(error.filename, str):
        error.filename = error.filename.replace(local, address)
