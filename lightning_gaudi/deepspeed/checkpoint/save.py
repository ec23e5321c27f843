"""Saves sharded checkpoints for the strategies of the Trainer and of Fabric."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH

from lightning_gaudi._core import hooks
from lightning_gaudi._core.collectives import gather_objects, on_rank_zero, raise_together
from lightning_gaudi._patches.apply import replaced, require

from ...checkpoint import stored_shards
from ...checkpoint.atomic import write_atomically
from ...checkpoint.checksum import ChecksumFile
from ...checkpoint.cpu_tensors import save_as_cpu_tensors
from ...checkpoint.folders import AnyPath, place_of
from ...checkpoint.leftovers import TOOLS
from ...checkpoint.manifest import FileEntry, Manifest, describe, with_files
from ...checkpoint.remote import RemotePath
from ...checkpoint.snapshot import HostMemory, Snapshot
from ...checkpoint.space import check_space, file_bytes, needed_bytes
from . import consolidate, versions

Prepare = Callable[[HostMemory | None], Callable[[], None]]


def save(
    engine: Any,
    path: _PATH,
    extras: Mapping[str, Any],
    *,
    exclude_frozen: bool,
    with_manifest: bool = True,
    write: Callable[[Prepare], None] = lambda prepare: prepare(None)(),
) -> None:
    """Saves a checkpoint; until it is complete on all ranks, `path` is unchanged.

    All ranks call it.

    Args:
        engine: DeepSpeed's, which trains.
        path: A local folder that all ranks see, or an address that fsspec knows.
        extras: What to save beside the model and the optimizer.
        exclude_frozen: Leave out the parameters that are not trained.
        with_manifest: Whether to save a manifest of checksums, too.
        write: Writes the recorded files now or later; see `HPUCheckpointIO.write`.

    Raises:
        MisconfigurationException: DeepSpeed's settings choose another way of saving.
        OSError: A rank could not write its part.
        ValueError: `extras` has a name that DeepSpeed needs.
    """
    place = place_of(path)
    _check_engine(engine)
    names = consolidate.reserved(extras)
    if names:
        raise ValueError(
            f"A checkpoint of DeepSpeed's has something of its own under the name {names[0]!r}, "
            "which is in your state, too. Save yours under another name."
        )
    manifest = describe(extras) if with_manifest else None

    def prepare(memory: HostMemory | None) -> Callable[[], None]:
        with contextlib.ExitStack() as claims:
            tag = on_rank_zero(lambda: _claim(place, claims))
            # DeepSpeed makes a folder even if its writer only records.
            folder = (
                place
                if isinstance(place, Path)
                else claims.enter_context(stored_shards.scratch_folder())
            )
            with _recording(engine, memory) as record:
                engine.save_checkpoint(
                    str(folder),
                    tag=tag,
                    client_state=dict(extras),
                    # `publish` writes `latest`, once the files of all ranks are on disk.
                    save_latest=False,
                    exclude_frozen_parameters=exclude_frozen,
                )
            return partial(_publish, record, folder, place / tag, manifest, claims.pop_all())

    write(prepare)


def _publish(
    record: _Record,
    folder: Path,
    version: AnyPath,
    manifest: Manifest | None,
    claims: contextlib.ExitStack,
) -> None:
    """Writes the recorded files, and makes them the version that is loaded.

    Args:
        record: The files of this rank.
        folder: The folder that DeepSpeed was told to save to, with its tools.
        version: The version that the files belong to.
        manifest: The manifest, without its files.
        claims: Locks and temporary folders, which are released at the end.
    """
    place, tag = version.parent, version.name
    kind: Any = stored_shards if isinstance(place, RemotePath) else versions
    with claims:
        try:
            files = _write_together(record, version)
            if isinstance(place, RemotePath):
                on_rank_zero(partial(_copy_tools, folder, place))
        except BaseException:
            kind.discard(place, tag)
            raise
        complete = None if manifest is None else with_files(manifest, files)
        on_rank_zero(lambda: kind.publish(place, tag, complete))


def _claim(place: AnyPath, claims: contextlib.ExitStack) -> str:
    if isinstance(place, RemotePath):
        return stored_shards.new_version()
    claim = versions.Claim(place)
    claims.callback(claim.release)
    return claim.tag


def _copy_tools(folder: Path, place: RemotePath) -> None:
    for tool in TOOLS:
        if (folder / tool).is_file():
            data = (folder / tool).read_bytes()
            (place / tool).write(lambda file, data=data: file.write(data))  # type: ignore[misc]


def _write_together(record: _Record, version: AnyPath) -> dict[str, FileEntry]:
    """Writes the files of all ranks if there is room for them, and returns their entries."""
    raise_together(record.error)
    hooks.before_write(partial(_sizes, record))
    sizes = gather_objects([needed_bytes(state) for state, _ in record.files])
    largest = max((size for each in sizes for size in each), default=0)
    if isinstance(version, Path):
        on_rank_zero(lambda: check_space(version.parent, sum(map(sum, sizes)), largest))
    error: Exception | None = None
    written: dict[str, FileEntry] = {}
    try:
        written = {path.name: _write(state, version / path.name) for state, path in record.files}
    except Exception as caught:
        error = caught
    raise_together(error)
    return {name: each for found in gather_objects(written) for name, each in found.items()}


def _sizes(record: _Record) -> tuple[int, int]:
    """Returns the bytes of all ranks' files, and of this rank's; see `hooks.before_write`."""
    sizes = {path.name: file_bytes(state) for state, path in record.files}
    of_rank = sum(sizes.values())
    # Each rank has such files, of about the same size; the others are rank 0's alone.
    of_each = sum(size for name, size in sizes.items() if "zero_pp_rank_" in name)
    return of_rank + of_each * (dist.get_world_size() - 1), of_rank


def _write(snapshot: Snapshot, path: AnyPath) -> FileEntry:
    found: list[FileEntry] = []

    def write(file: IO[bytes]) -> None:
        watched = ChecksumFile(file)
        save_as_cpu_tensors(snapshot.state(), cast("IO[bytes]", watched))
        found.append(watched.entry())

    if isinstance(path, RemotePath):
        path.write(write)
    else:
        write_atomically(path, write)
    return found[0]


def _check_engine(engine: Any) -> None:
    """Refuses settings with which a checkpoint could not be loaded."""
    writer = type(engine.checkpoint_engine).__name__
    if writer != "TorchCheckpointEngine":
        raise MisconfigurationException(
            f"DeepSpeed's configuration chooses {writer} to write checkpoints, which cannot tell "
            "when all of one is on disk. Remove 'writer' from its section 'checkpoint'."
        )
    if engine.use_node_local_storage():
        raise MisconfigurationException(
            "checkpoint.use_node_local_storage=true in DeepSpeed's configuration leaves a part of "
            "each checkpoint on each node, where nobody can tell whether all of it is there. "
            "Remove it, and save to a file system that all nodes share."
        )
    if engine.zero_optimization_stage() == 3 and not hasattr(engine.optimizer, "dp_process_group"):
        raise MisconfigurationException(
            "The model was set up to be evaluated with ZeRO stage 3, and cannot be saved in shards "
            "then. Save it after training, or load the checkpoint that it came from."
        )


class _Record:
    """Stands in for the engine's writer, and keeps what a rank is to write, and the first error.

    A rank that raised at once would leave the others waiting for it in `save_checkpoint`.
    """

    def __init__(self, writer: Any, memory: HostMemory | None) -> None:
        self._writer, self._memory = writer, memory
        self.error: Exception | None = None
        self.files: list[tuple[Any, Path]] = []
        """Snapshots and their paths. States that may not be written at all are not copied."""

    def save(self, state_dict: Any, path: str) -> None:
        if hooks.is_written_at_once():
            self.keep(lambda: self.files.append((Snapshot(state_dict, self._memory), Path(path))))
        else:
            self.files.append((state_dict, Path(path)))

    def keep(self, do: Callable[[], Any]) -> None:
        try:
            do()
        except Exception as error:
            self.error = self.error or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@contextlib.contextmanager
def _recording(engine: Any, memory: HostMemory | None) -> Iterator[_Record]:
    """Replaces the engine's writer by a `_Record`."""
    record = _Record(engine.checkpoint_engine, memory)
    require("deepspeed-saving", engine, "_copy_recovery_script")
    copy_tool = engine._copy_recovery_script

    def copy_and_keep(folder: str) -> None:
        record.keep(lambda: copy_tool(folder))
        record.keep(lambda: versions.sync_tools(Path(folder)))

    with replaced(
        "deepspeed-saving", engine, checkpoint_engine=record, _copy_recovery_script=copy_and_keep
    ):
        yield record
