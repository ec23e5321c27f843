"""Saves a sharded checkpoint at once or not at all."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from typing_extensions import override

from lightning_gaudi._core import hooks
from lightning_gaudi._core.collectives import cpu_group, gather_objects, is_connected, on_rank_zero

from .. import stored_shards
from ..checksum import ChecksumFile
from ..cpu_tensors import save_as_cpu_tensors
from ..folders import (
    AnyPath,
    make_folder,
    place_of,
    prepare,
    put_in_place,
    remove,
    sync,
    temporary_for,
)
from ..leftovers import SaveLock, sweep
from ..manifest import FileEntry, Manifest, describe, with_files, write_folder_manifest
from ..remote import RemotePath
from ..space import check_space, file_bytes, kept, mib, needed_bytes, whole_bytes
from .layout import REST, check_replaceable


def save_sharded(
    path: str | Path,
    shards: dict[str, Any],
    rest: dict[str, Any],
    *,
    with_manifest: bool = True,
) -> None:
    """Saves a folder of shards; until it is complete, `path` is unchanged. All ranks call it.

    Args:
        path: A local path, the same on all ranks, or an address that fsspec knows; a checkpoint
            that is there is replaced.
        shards: The states of models and optimizers by name, as on this rank: DTensors,
            ShardedTensors, or tensors that all ranks have.
        rest: Whatever else belongs to the checkpoint; that of rank 0 is saved.
        with_manifest: Whether to save a manifest of checksums, too.

    Raises:
        IsADirectoryError: `path` is a folder with something else in it.
        OSError: A rank cannot write, such as when the disk is full; raised on all ranks.
    """
    hooks.before_write(lambda: (whole_bytes(shards, rest), file_bytes(shards, rest)))
    target = place_of(path)
    manifest = describe(rest) if with_manifest else None
    if isinstance(target, RemotePath):
        _save_to_store(target, shards, rest, manifest)
        return
    # Rank 0 looks for room for all, before any rank writes.
    sizes = gather_objects(needed_bytes(shards))
    lock: list[SaveLock] = []
    try:
        on_rank_zero(lambda: lock.append(_begin(target, sizes)))
        temporary = temporary_for(target)
        try:
            files = _write_shards(_Writer(temporary), shards)
        # If a rank fails, torch raises this on all of them, so that rank 0 can clear up.
        except CheckpointException as error:
            on_rank_zero(lambda: remove(temporary))
            raise _explain(target, _failures(error)) from error
        on_rank_zero(lambda: _finish(target, rest, manifest, files))
    finally:
        for each in lock:
            each.release()


def _save_to_store(
    target: RemotePath, shards: dict[str, Any], rest: dict[str, Any], manifest: Manifest | None
) -> None:
    # Ranks must agree on the folder, and the name holds a time.
    tag = on_rank_zero(stored_shards.new_version)
    version = target / tag
    try:
        files = _write_shards(_StoreWriter(version), shards)
    except CheckpointException as error:
        on_rank_zero(lambda: stored_shards.discard(target, tag))
        raise _explain(target, _failures(error)) from error

    def finish() -> None:
        try:
            with (version / REST).writing() as raw:
                file = ChecksumFile(raw)
                save_as_cpu_tensors(rest, cast("IO[bytes]", file))
            described = manifest and with_files(manifest, {**files, REST: file.entry()})
            stored_shards.publish(target, tag, described)
        except BaseException as error:
            stored_shards.discard(target, tag)
            if isinstance(error, (OSError, RuntimeError)):
                raise _explain(target, {0: error}) from error
            raise

    on_rank_zero(finish)


def _write_shards(writer: _Writer | _StoreWriter, shards: dict[str, Any]) -> dict[str, FileEntry]:
    """Writes this rank's part; returns the entries of the files of all ranks."""
    # DCP gathers pickled objects; over HCCL they would pass through the cards.
    group = cpu_group() if is_connected() else None
    save(shards, storage_writer=writer, process_group=group)
    return {
        name: each
        for found in gather_objects(writer.files.written())
        for name, each in found.items()
    }


class _Files(FileSystem):
    """Writes local files, and takes the checksum of each."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[str, ChecksumFile] = {}

    @override
    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        with super().create_stream(path, mode) as stream:
            if "w" not in mode:
                yield stream
                return
            watched = ChecksumFile(cast("IO[bytes]", stream))
            self._streams[Path(path).name] = watched
            yield cast("io.IOBase", watched)

    def written(self) -> dict[str, FileEntry]:
        """Returns the entries of what was written, by name.

        torch's DCP writes its metadata to a `.tmp` file and renames it when it is complete.
        """
        found = {name: stream.entry() for name, stream in self._streams.items()}
        return {name.removesuffix(".tmp"): entry for name, entry in found.items()}


class _Objects(_Files):
    """Writes objects of a store, which appear under their final name when they are complete."""

    @override
    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        place = RemotePath(str(path).removesuffix(".tmp"))
        with place.writing() as stream:
            self._streams[place.name] = watched = ChecksumFile(stream)
            yield cast("io.IOBase", watched)

    @override
    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    @override
    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    @override
    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Does nothing, since a store has no folders."""

    @override
    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Returns False, since a version is always new."""
        return False

    @override
    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Does nothing, since `create_stream` has given the final name."""


def refuse_options(storage_options: Any) -> None:
    """Refuses arguments for the storage, which sharded checkpoints do not have.

    Raises:
        TypeError: `storage_options` are given.
    """
    if storage_options is not None:
        raise TypeError(
            f"Checkpoints of models in shards have no use for {storage_options=}. Leave them out."
        )


class _Writer(FileSystemWriter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = self.files = _Files()


class _StoreWriter(FileSystemWriter):
    # torch's writer makes a `Path` of its argument, which would turn "s3://" into "s3:/". Syncing
    # has no meaning in a store.
    def __init__(self, version: RemotePath) -> None:
        super().__init__("", sync_files=False)
        self.fs = self.files = _Objects()
        self.path = self.fs.init_path(str(version))


def _failures(error: CheckpointException) -> dict[int, BaseException]:
    return {rank: failure[0] for rank, failure in error.failures.items()}


def _begin(target: Path, sizes: list[int]) -> SaveLock:
    check_replaceable(target)
    try:
        make_folder(target.parent)
    except OSError as error:
        raise _explain(target, {0: error}) from error
    # Before the room is measured: leftovers of killed saves may take much of it.
    sweep(target.parent)
    check_space(target, sum(sizes), max(sizes))
    lock = SaveLock(target)
    try:
        prepare(target)
    except OSError as error:
        lock.release()
        raise _explain(target, {0: error}) from error
    return lock


def _finish(
    target: Path,
    rest: dict[str, Any],
    manifest: Manifest | None,
    files: dict[str, FileEntry],
) -> None:
    temporary = temporary_for(target)
    try:
        with (temporary / REST).open("xb") as raw:
            file = ChecksumFile(raw)
            save_as_cpu_tensors(rest, cast("IO[bytes]", file))
            raw.flush()
            os.fsync(raw.fileno())
        # The manifest comes last: a folder with one is complete.
        if manifest is not None:
            write_folder_manifest(temporary, with_files(manifest, {**files, REST: file.entry()}))
        sync(temporary)
        put_in_place(temporary, target)
    # `torch.save` reports a full disk as a RuntimeError.
    except (OSError, RuntimeError) as error:
        remove(temporary)
        raise _explain(target, {0: error}) from error
    except BaseException:
        remove(temporary)
        raise


def _explain(target: AnyPath, failures: Mapping[int, BaseException]) -> OSError:
    """Returns an error that says what failed on which ranks, and what is left."""
    errors = [error for error in failures.values() if isinstance(error, OSError)]
    first = errors[0] if errors else next(iter(failures.values()))
    reason = (errors[0].strerror if errors else None) or first
    ranks = ", ".join(str(rank) for rank in sorted(failures))
    code = (errors[0].errno if errors else None) or errno.EIO
    problem = f"Could not save {target}: {reason}, on rank {ranks}."
    if isinstance(target, RemotePath):
        advice = "Look at the address and its rights, or save elsewhere."
        return OSError(code, f"{problem}{stored_shards.kept(target)} {advice}")
    try:
        free = f" {mib(shutil.disk_usage(target.parent).free)} are free there."
    except OSError:
        free = ""
    return OSError(code, f"{problem}{free}{kept(target)} Free some space or save elsewhere.")
