"""Loads sharded and whole checkpoints for the strategies of the Trainer and of Fabric."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._core.collectives import on_rank_zero, raise_together

from ...checkpoint import restricted
from ...checkpoint.errors import UntrustedCheckpointError, damage_on_all_ranks
from ...checkpoint.folders import local_path
from ...checkpoint.io import HPUCheckpointIO
from ...checkpoint.manifest import read_folder_manifest
from ...checkpoint.torch_dcp.layout import is_sharded_folder
from ...checkpoint.verify import check_folder_together, read_checked
from . import consolidate, resize, shards, versions
from .shards import Shards
from .weights import load_weights


def is_deepspeed_folder(path: _PATH) -> bool:
    """Returns whether a path is a folder but not one of torch's shards, and so DeepSpeed's.

    All ranks call it, and get the answer of rank 0.
    """
    if not _is_local_file_protocol(path):
        return False
    folder = local_path(path)
    return on_rank_zero(lambda: folder.is_dir() and not is_sharded_folder(folder))


def read_unsharded(
    path: _PATH, files: CheckpointIO, *, weights_only: bool | None
) -> dict[str, Any]:
    """Reads a checkpoint of another strategy, or a consolidated one.

    Args:
        path: A file, or a folder of torch's shards.
        files: What reads files.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.

    Returns:
        The checkpoint with all weights, on the CPU, still to be loaded.
    """
    if _is_local_file_protocol(path) and local_path(path).is_dir():
        files = HPUCheckpointIO()
    options = {} if weights_only is None else {"weights_only": weights_only}
    with damage_on_all_ranks():
        checkpoint: dict[str, Any] = files.load_checkpoint(path, **options)
    return checkpoint


def begin_anew(engine: Any, path: _PATH, checkpoint: Mapping[str, Any]) -> None:
    """Warns that the optimizer starts anew, and sets the learning rate of its schedule.

    Args:
        engine: DeepSpeed's, which trains.
        path: That of the checkpoint.
        checkpoint: What `read_unsharded` gave; of the Trainer.
    """
    rank_zero_warn(
        f"The checkpoint {path} was not saved by DeepSpeed: its weights and the progress of its "
        "training are restored, but its optimizer is not, and starts anew."
    )
    for schedule in checkpoint.get("lr_schedulers", [])[:1]:
        rates = schedule.get("_last_lr", [])
        # The schedule goes on, but sets the rate only at its next step: the first one would have
        # the initial.
        for group, rate in zip(engine.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate


def load(
    engine: Any,
    path: _PATH,
    *,
    with_optimizer: bool,
    strict: bool,
    verify: bool = True,
) -> dict[str, Any]:
    """Loads a sharded checkpoint, once all of its files have been checked.

    All ranks call it.

    Args:
        engine: DeepSpeed's, which trains or evaluates.
        path: The local folder that it was saved to.
        with_optimizer: Whether to load the optimizer, to go on training.
        strict: Whether the names of its weights must be those of the model.
        verify: Whether to compare all of it with its manifest, if it has one.

    Returns:
        What was saved beside the model and the optimizer.

    Raises:
        FileNotFoundError: There is none, or a file is missing.
        UntrustedCheckpointError: A file holds more than tensors and plain data.
        ValueError: A file is damaged, or the optimizer's state does not fit this run.
    """
    folder = local_path(path)
    version = folder / on_rank_zero(lambda: versions.latest(folder))
    # Lengths first, which costs nothing and finds most damage.
    check_folder_together(version, with_checksum=False)
    found = _find(folder, version, verify=verify)
    is_read_once = verify and with_optimizer and _has_own_files(found, version)
    read_later = (*found.model_files, *found.optimizer_files) if is_read_once else ()
    check_folder_together(version, with_checksum=verify, but=read_later)
    if not with_optimizer:
        load_weights(engine, consolidate.weights(found), strict=strict)
        return consolidate.extras(found)
    states = _read_own(found) if is_read_once else {}
    if not is_read_once:
        raise_together(_refused(found))
    _check_kind(engine, found)
    with shards.read_by_deepspeed(states):
        _load_all(engine, found, strict=strict)
    return consolidate.extras(found)


def _find(folder: Path, version: Path, *, verify: bool) -> Shards:
    """Returns the files; if that fails, the manifest tells which is damaged."""
    try:
        with damage_on_all_ranks():
            return on_rank_zero(lambda: shards.find(folder))
    except Exception:
        check_folder_together(version, with_checksum=verify)
        raise


def _has_own_files(found: Shards, version: Path) -> bool:
    """Returns whether each rank reads its own files, and the manifest has all of them."""

    def is_told() -> bool:
        manifest = read_folder_manifest(version)
        files = (*found.model_files, *found.optimizer_files)
        return manifest is not None and all(path.name in manifest.files for path in files)

    is_same_number = found.num_ranks == dist.get_world_size() or not found.optimizer_files
    return is_same_number and on_rank_zero(is_told)


def _read_own(found: Shards) -> dict[Path, Any]:
    """Reads this rank's files and compares them with the manifest, before any rank loads one.

    Reading them a second time for the checksum would take most of the time. So the host holds the
    states of model and optimizer at once, where DeepSpeed reads one after the other.
    """
    states: dict[Path, Any] = {}
    refused: Exception | None = None
    with damage_on_all_ranks():
        try:
            for path in found.of_rank(dist.get_rank()):
                states[path] = read_checked(path, partial(restricted.load, name=path))
        except UntrustedCheckpointError as error:
            refused = error
    raise_together(refused)
    return states


def _refused(found: Shards) -> Exception | None:
    """Returns the error of a file that would be refused, for all ranks to raise together.

    Otherwise one rank would raise within DeepSpeed's loading, and the others would wait for it.
    """
    files = (*found.model_files, *found.optimizer_files)
    try:
        for path in files[dist.get_rank() :: dist.get_world_size()]:
            shards.load(path)
    except UntrustedCheckpointError as error:
        return error
    return None


def _load_all(engine: Any, found: Shards, *, strict: bool) -> None:
    """Loads the model and the optimizer."""
    if found.num_ranks == dist.get_world_size() or not found.optimizer_files:
        engine.load_checkpoint(
            str(found.folder),
            tag=found.tag,
            load_lr_scheduler_states=False,
            load_module_strict=strict,
        )
    else:
        resize.load(engine, found, strict=strict)


def _check_kind(engine: Any, found: Shards) -> None:
    """Refuses an optimizer's state of another layout than this engine's."""
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
