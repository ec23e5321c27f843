"""Compares checkpoints of any kind with their manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
from lightning.fabric.utilities.types import _PATH

from lightning_gaudi._core.collectives import is_connected
from lightning_gaudi.untrusted import path_inside, printable

from . import sealed_zip
from .checksum import ReadingChecksum, checksum_of
from .errors import ADVICE, DamagedCheckpointError, IncompleteCheckpointError, damage_on_all_ranks
from .folders import AnyPath
from .manifest import FileEntry, read_folder_manifest
from .remote import RemotePath, opened


def check_file(path: AnyPath, *, with_checksum: bool = True) -> None:
    """Compares a single file with its manifest; without one, only its ends are checked.

    Args:
        path: A file.
        with_checksum: Whether to read all of the file.

    Raises:
        DamagedCheckpointError: It is not what was saved; says what it has and what it should have.
        OSError: It cannot be read.
    """
    with checking(path, with_checksum=with_checksum):
        pass


@contextmanager
def checking(path: AnyPath, *, with_checksum: bool = True) -> Iterator[IO[bytes]]:
    """Checks a file as `check_file` does while a block loads it.

    Yields:
        The open file. Bytes that the block reads are not read again for the checksum; the rest is
        read after the block.
    """
    with opened(path) as whole:
        found = sealed_zip.inspect_open(whole, path)
        if not with_checksum or found.entry is None:
            yield whole
            return
        with sealed_zip.reading(whole, found.entry) as file:
            try:
                yield cast("IO[bytes]", file)
            except Exception:
                # That the file is damaged explains whatever the block has raised, so it is said
                # first.
                sealed_zip.compare(path, file.entry(), found.entry)
                raise
            sealed_zip.compare(path, file.entry(), found.entry)


def read_remote(path: _PATH, *, with_checksum: bool = True) -> bytes:
    """Returns the bytes of a remote file, read once and compared as `check_file` does.

    Args:
        path: An address that fsspec knows.
        with_checksum: Whether to compare all of it.

    Raises:
        DamagedCheckpointError: It is not what was saved.
    """
    place = RemotePath(str(path))
    with place.open() as file:
        data: bytes = file.read()
    found = sealed_zip.inspect_bytes(data, place)
    if with_checksum and found.entry is not None:
        actual = sealed_zip.checksum_in_memory(data, found.entry)
        sealed_zip.compare(found.path, actual, found.entry)
    return data


def check_folder(
    folder: Path,
    *,
    with_checksum: bool = True,
    but: Collection[Path] = (),
    part: int = 0,
    num_parts: int = 1,
) -> None:
    """Compares the files of a folder with its manifest, if it has one.

    Args:
        folder: The one that the manifest is in.
        with_checksum: Whether to read all of them.
        but: Files that are read and compared elsewhere; see `read_checked`.
        part: Which of the files are read, if several processes share them.
        num_parts: How many processes do.

    Raises:
        IncompleteCheckpointError: One is not there; names all that are not what was saved.
        DamagedCheckpointError: One is not what was saved.
        OSError: One cannot be read.
    """
    manifest = read_folder_manifest(folder)
    if manifest is None:
        return
    files = _within(folder, manifest.files)
    problems = [_length_problem(path, each) for path, each in files.items()]
    # A file that is missing or too short is damage enough: nobody need read the others.
    if with_checksum and not any(problems):
        shared = [path for path in files if path not in but][part::num_parts]
        problems = [_checksum_problem(path, files[path]) for path in shared]
    if found := [each for each in problems if each]:
        is_missing = any(each.endswith(" is missing") for each in found)
        raise _damaged(folder, found, IncompleteCheckpointError if is_missing else None)


def _within(folder: Path, files: Mapping[str, FileEntry]) -> dict[Path, FileEntry]:
    """Returns the paths of the files that a manifest names, which must lie in its folder."""
    try:
        return {path_inside(folder, name): each for name, each in files.items()}
    except ValueError as error:
        raise _damaged(
            folder, [f"its manifest names a file that is not its own: {error}"]
        ) from None


def check_folder_together(
    folder: Path, *, with_checksum: bool = True, but: Collection[Path] = ()
) -> None:
    """Checks a folder as `check_folder` does, with the files divided among all ranks.

    If one rank finds damage, all raise. The cards are not waited for.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if is_connected() else (0, 1)
    with damage_on_all_ranks():
        check_folder(folder, with_checksum=with_checksum, but=but, part=rank, num_parts=world)


def read_checked(path: Path, load: Callable[[IO[bytes]], Any]) -> Any:
    """Loads a file of a folder that has a manifest, and compares it as it is read.

    Args:
        path: One that the manifest tells of.
        load: Gets the open file. If it raises and the file is damaged, the damage is raised.

    Returns:
        What `load` returns.

    Raises:
        DamagedCheckpointError: It is not what was saved.
        OSError: It cannot be read.
    """
    manifest = read_folder_manifest(path.parent)
    assert manifest is not None
    expected = _within(path.parent, manifest.files)[path]
    with ReadingChecksum(path, expected) as file:
        error: Exception | None = None
        try:
            found = load(cast("IO[bytes]", file))
        except Exception as caught:
            error = caught
        if problem := _difference(path, file.entry(), expected):
            raise _damaged(path.parent, [problem]) from error
    if error is not None:
        raise error
    return found


def _length_problem(path: Path, expected: FileEntry) -> str | None:
    try:
        is_there = path.is_file()
    except OSError:  # the name is too long for a file
        is_there = False
    if not is_there:
        return f"{printable(path.name)} is missing"
    size = path.stat().st_size
    if size == expected.num_bytes:
        return None
    what = "truncated" if size < expected.num_bytes else "too long"
    return f"{printable(path.name)} is {what}: {size:,} bytes of {expected.num_bytes:,}"


def _checksum_problem(path: Path, expected: FileEntry) -> str | None:
    return _difference(path, checksum_of(path, expected), expected)


def _difference(path: Path, found: FileEntry, expected: FileEntry) -> str | None:
    if found == expected:
        return None
    return (
        f"{printable(path.name)} has the SHA-256 {found.sha256[:16]} of its "
        f"{expected.num_bytes:,} bytes, expected {expected.sha256[:16]}"
    )


def _damaged(
    folder: Path, problems: Sequence[str], kind: type[DamagedCheckpointError] | None = None
) -> DamagedCheckpointError:
    message = f"The checkpoint {printable(folder)} is damaged: {'; '.join(problems)}. {ADVICE}"
    return (kind or DamagedCheckpointError)(message)
