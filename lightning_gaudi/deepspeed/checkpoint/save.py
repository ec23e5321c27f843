"""Saving checkpoints in shards, for the strategies of the Trainer and of Fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH

from lightning_gaudi._core.error_sync import on_rank_zero, raise_together
from lightning_gaudi._patches.apply import replaced, require

from ...checkpoint.atomic import write_atomically
from ...checkpoint.cpu_tensors import save_as_cpu_tensors
from . import consolidate, versions


def save(engine: Any, path: _PATH, extras: Mapping[str, Any], *, exclude_frozen: bool) -> None:
    """Save a checkpoint; until it is complete on all ranks, `path` has the one that it had.

    All ranks call it.

    Args:
        engine: DeepSpeed's, which trains.
        path: A local folder that all ranks see.
        extras: What to save beside the model and the optimizer.
        exclude_frozen: Leave out the parameters that are not trained.

    Raises:
        MisconfigurationException: DeepSpeed's settings have it save in another way than this one.
        OSError: A rank could not write its part.
        ValueError: It is no local path, or `extras` has a name that DeepSpeed needs.
    """
    folder = local_folder(path)
    _check_engine(engine)
    names = consolidate.reserved(extras)
    if names:
        raise ValueError(
            f"A checkpoint of DeepSpeed's has something of its own under the name {names[0]!r}, "
            "which is in your state, too. Save yours under another name."
        )
    tag = on_rank_zero(lambda: versions.claim(folder))
    with _recording(engine) as record:
        engine.save_checkpoint(
            str(folder),
            tag=tag,
            client_state=dict(extras),
            save_latest=False,
            exclude_frozen_parameters=exclude_frozen,
        )
    try:
        raise_together(record.error)
    except BaseException:
        versions.discard(folder, tag)
        raise
    on_rank_zero(lambda: versions.publish(folder, tag))


def local_folder(path: _PATH) -> Path:
    """The path of a checkpoint, which DeepSpeed can only have in the local file system.

    Raises:
        ValueError: It is somewhere else.
    """
    if not _is_local_file_protocol(path):
        raise ValueError(
            f"DeepSpeed saves its shards to local folders, and {str(path)!r} is none. Save to a "
            "local path, on a file system that all nodes share, and copy it from there."
        )
    return Path(get_filesystem(path)._strip_protocol(str(path)))


def _check_engine(engine: Any) -> None:
    """Refuse to save what could not be loaded."""
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
    """Writes a rank's files, and keeps the first error for when all ranks are through.

    A rank that raises at once would leave the others waiting for it.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.error: Exception | None = None

    def save(self, state_dict: Any, path: str) -> None:
        self.keep(
            lambda: write_atomically(Path(path), lambda file: save_as_cpu_tensors(state_dict, file))
        )

    def keep(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except Exception as error:
            self.error = self.error or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@contextmanager
def _recording(engine: Any) -> Iterator[_Record]:
    """Have the engine write as `_Record` does."""
    record = _Record(engine.checkpoint_engine)
    require("deepspeed-saving", engine, "_copy_recovery_script")
    copy_tool = engine._copy_recovery_script

    def copy_and_keep(folder: str) -> None:
        record.keep(lambda: copy_tool(folder))

    with replaced(
        "deepspeed-saving", engine, checkpoint_engine=record, _copy_recovery_script=copy_and_keep
    ):
        yield record
