"""Saving and loading checkpoints in shards, for the strategies of the Trainer and of Fabric."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from .. import distributed
from ..checkpoint.atomic import write_atomically
from ..checkpoint.cpu_tensors import save_as_cpu_tensors
from ..checkpoint.sharded import is_sharded, load_full_checkpoint
from . import consolidate, shards, tags, universal
from .shards import Shards
from .weights import load_weights


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
    tag = distributed.on_rank_zero(lambda: tags.claim(folder))
    with _recording(engine) as record:
        engine.save_checkpoint(
            str(folder),
            tag=tag,
            client_state=dict(extras),
            save_latest=False,
            exclude_frozen_parameters=exclude_frozen,
        )
    try:
        distributed.raise_together(record.error)
    except BaseException:
        tags.discard(folder, tag)
        raise
    distributed.on_rank_zero(lambda: tags.publish(folder, tag))


def is_in_shards(path: _PATH) -> bool:
    """Whether it is a folder, and not one of torch's shards: then DeepSpeed should have saved it.

    All ranks call it, and get what rank 0 finds.
    """
    if not _is_local_file_protocol(path):
        return False
    folder = local_folder(path)
    return distributed.on_rank_zero(lambda: folder.is_dir() and not is_sharded(folder))


def load_whole(
    engine: Any, path: _PATH, files: CheckpointIO, *, is_fitting: bool, weights_only: bool | None
) -> dict[str, Any]:
    """Read a checkpoint that another strategy has saved, or that was consolidated.

    Args:
        engine: DeepSpeed's; a new optimizer gets the learning rate that its schedule is at.
        path: A file, or a folder of torch's shards.
        files: What reads files.
        is_fitting: Whether training is to go on from it.
        weights_only: As for `torch.load`.

    Returns:
        The checkpoint with all weights, on the CPU, still to be loaded.
    """
    if _is_local_file_protocol(path) and local_folder(path).is_dir():
        checkpoint = load_full_checkpoint(local_folder(path), weights_only=bool(weights_only))
    else:
        options = {} if weights_only is None else {"weights_only": weights_only}
        checkpoint = files.load_checkpoint(path, **options)
    if is_fitting:
        rank_zero_warn(
            f"The checkpoint {path} was not saved by DeepSpeed: its weights and the progress of "
            "its training are restored, but its optimizer is not, and starts anew."
        )
        for schedule in checkpoint.get("lr_schedulers", [])[:1]:
            rates = schedule.get("_last_lr", [])
            for group, rate in zip(engine.optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
    return checkpoint


def load(
    engine: Any,
    path: _PATH,
    *,
    with_optimizer: bool,
    strict: bool,
    weights_only: bool | None = None,
) -> dict[str, Any]:
    """Load a checkpoint in shards, all of whose files have been looked at before.

    All ranks call it.

    Args:
        engine: DeepSpeed's, which trains or evaluates.
        path: The local folder that it was saved to.
        with_optimizer: Whether the engine is to go on training where the checkpoint was saved.
        strict: Whether the names of its weights must be those of the model.
        weights_only: True cannot be honoured.

    Returns:
        What was saved beside the model and the optimizer.

    Raises:
        FileNotFoundError: There is none, or a file is missing.
        ValueError: A file is damaged, or the optimizer cannot go on in this run.
    """
    if weights_only:
        raise ValueError(
            f"weights_only=True cannot load {path}: DeepSpeed's shards hold objects of its own. "
            "Leave it out if you trust the checkpoint."
        )
    folder = local_folder(path)
    found = distributed.on_rank_zero(lambda: shards.find(folder))
    if not with_optimizer:
        load_weights(engine, consolidate.weights(found), strict=strict)
        return consolidate.extras(found)
    _check_kind(engine, found)
    if found.num_ranks == dist.get_world_size() or not found.optimizer_files:
        _load_all(engine, folder, found.tag, strict=strict)
    else:
        _load_divided_anew(engine, found, strict=strict)
    return consolidate.extras(found)


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


def _check_kind(engine: Any, found: Shards) -> None:
    """Refuse an optimizer's state that is laid out otherwise than this engine's."""
    stage = engine.zero_optimization_stage()
    is_sharded, is_bf16 = bool(found.optimizer_files), engine.bfloat16_enabled()
    saved = "3" if found.is_stage_3 else "1 or 2" if is_sharded else "0"
    if (found.is_stage_3, is_sharded) != (stage == 3, stage > 0):
        what, fix = f"with ZeRO stage {saved}, and this run has stage {stage}", f"stage={saved}"
    elif is_sharded and found.is_bf16 != is_bf16:
        kinds = ("in fp32 or fp16", "in bf16")
        what = f"{kinds[found.is_bf16]}, and this run trains {kinds[is_bf16]}"
        fix = "the precision that it was saved with"
    else:
        return
    raise ValueError(
        f"The checkpoint {found.folder} was saved {what}: DeepSpeed cannot go on with its "
        f"optimizer. Pass {fix}, or start a new optimizer from its weights: "
        f"`lightning-gaudi consolidate {found.folder} weights.ckpt`."
    )


def _load_all(engine: Any, folder: Path, tag: str, *, strict: bool) -> None:
    engine.load_checkpoint(
        str(folder),
        tag=tag,
        load_optimizer_states=True,
        load_lr_scheduler_states=False,
        load_module_strict=strict,
    )


def _load_divided_anew(engine: Any, found: Shards, *, strict: bool) -> None:
    """Load what another number of ranks has saved, through DeepSpeed's universal checkpoint."""
    distributed.on_rank_zero(lambda: universal.check(found, dist.get_world_size()))
    name = distributed.broadcast_object(f".universal-{uuid.uuid4().hex}.tmp")
    temporary = found.folder / name
    try:
        distributed.on_rank_zero(lambda: universal.convert(found, temporary))
        engine._config.load_universal_checkpoint = True
        _load_all(engine, temporary, found.tag, strict=strict)
    finally:
        engine._config.load_universal_checkpoint = False
        distributed.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
    _complete(engine, found, strict=strict)


def _complete(engine: Any, found: Shards, *, strict: bool) -> None:
    """Load what DeepSpeed's universal checkpoint leaves out or mixes up (deepspeed 0.19.8).

    Delete this once it restores buffers and frozen parameters, gives each group of parameters its
    own settings in stage 3 instead of the first one's, and each of them a count of steps of its
    own there: torch's optimizers would count each step once for each group.
    """
    load_weights(engine, consolidate.weights(found), strict=strict)
    optimizer = engine.optimizer.optimizer
    for group, saved in zip(optimizer.param_groups, universal.param_groups(found), strict=True):
        group.update(saved)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].clone()


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
    copy_tool = engine._copy_recovery_script
    engine.checkpoint_engine = record
    engine._copy_recovery_script = lambda folder: record.keep(lambda: copy_tool(folder))
    try:
        yield record
    finally:
        engine.checkpoint_engine = record._writer
        del engine._copy_recovery_script
