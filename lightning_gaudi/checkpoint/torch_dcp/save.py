"""Save a checkpoint in shards, at once or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from lightning_gaudi._core.collectives import cpu_group, is_connected
from lightning_gaudi._core.error_sync import on_rank_zero

from ..cpu_tensors import save_as_cpu_tensors
from ..folders import prepare, put_in_place, remove, sync, temporary_for
from .layout import REST, check_replaceable


def save_sharded(path: str | Path, shards: dict[str, Any], rest: dict[str, Any]) -> None:
    """Save a folder of shards; until it is complete, `path` keeps what it had. All ranks call it.

    Args:
        path: A local path, the same on all ranks; a checkpoint that is there is replaced.
        shards: The states of models and optimizers by name, as on this rank: DTensors,
            ShardedTensors, or tensors that all ranks have.
        rest: Whatever else belongs to the checkpoint; that of rank 0 is saved.

    Raises:
        ValueError: `path` is not local.
        IsADirectoryError: `path` is a folder with something else in it.
        OSError: A rank cannot write, such as when the disk is full; raised on all ranks.
    """
    if not _is_local_file_protocol(path):
        raise ValueError(
            f"A checkpoint in shards can be saved to a local path only, not to {path}. Save it "
            "locally and copy the folder, or save full checkpoints."
        )
    target = Path(path)
    on_rank_zero(lambda: _begin(target))
    temporary = temporary_for(target)
    group = cpu_group() if is_connected() else None
    try:
        save(shards, storage_writer=FileSystemWriter(temporary), process_group=group)
    except CheckpointException as error:  # on all ranks, if on any
        failures = {rank: failure[0] for rank, failure in error.failures.items()}
        on_rank_zero(lambda: remove(temporary))
        raise _explain(target, failures) from error
    on_rank_zero(lambda: _finish(temporary, target, rest))


def refuse_options(storage_options: Any) -> None:
    """Refuse arguments for the storage, for which shards have no use.

    Raises:
        TypeError: There are some.
    """
    if storage_options is not None:
        raise TypeError(
            f"Checkpoints of models in shards have no use for {storage_options=}. Leave them out."
        )


def _begin(target: Path) -> None:
    check_replaceable(target)
    try:
        prepare(target)
    except OSError as error:
        raise _explain(target, {0: error}) from error


def _finish(temporary: Path, target: Path, rest: dict[str, Any]) -> None:
    try:
        with (temporary / REST).open("xb") as file:
            save_as_cpu_tensors(rest, file)
            file.flush()
            os.fsync(file.fileno())
        sync(temporary)
        put_in_place(temporary, target)
    except (OSError, RuntimeError) as error:  # torch.save hides a full disk in a RuntimeError
        remove(temporary)
        raise _explain(target, {0: error}) from error
    except BaseException:
        remove(temporary)
        raise


def _explain(target: Path, failures: Mapping[int, BaseException]) -> OSError:
    """An error that says what failed on which ranks, and what is left."""
    errors = [error for error in failures.values() if isinstance(error, OSError)]
    reason = errors[0].strerror if errors else next(iter(failures.values()))
    ranks = ", ".join(str(rank) for rank in sorted(failures))
    try:
        free = f" {shutil.disk_usage(target.parent).free / 2**20:.1f} MiB are free there."
    except OSError:
        free = ""
    kept = " The checkpoint that was there before is intact." if target.exists() else ""
    return OSError(
        errors[0].errno if errors else errno.EIO,
        f"Could not save {target}: {reason}, on rank {ranks}.{free}{kept} Free some space or save "
        "elsewhere.",
    )
