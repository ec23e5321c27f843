"""Where a fit goes on: from what it is told, or where that is damaged from one that is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi.reliability.jobs import begin_session, continue_run

from ..checkpoint.errors import DamagedCheckpointError
from ..checkpoint.folders import local_path
from ..checkpoint.leftovers import sweep


def checkpoint_folders(trainer: pl.Trainer) -> list[Path]:
    """Returns the local folders that a Trainer's callbacks save to."""
    found: list[Any] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint):
            # As Lightning finds them before the callbacks are set up (2.5.6 to 2.6.6).
            resolve = getattr(callback, "_ModelCheckpoint__resolve_ckpt_dir", None)
            found.append(resolve(trainer) if resolve is not None else callback.dirpath)
        elif isinstance(callback, OnExceptionCheckpoint):
            found.append(callback.dirpath)
    return [local_path(each) for each in found if each and _is_local_file_protocol(each)]


def why_not_remove(trainer: pl.Trainer, path: _PATH) -> str | None:
    """Returns why a checkpoint that a callback wants to be removed stays; None if it may go.

    What `ModelCheckpoint` removes was read from the checkpoint that the fit went on from, which may
    be somebody else's. Lightning compares names alone: `folder/../other` begins as `folder` does,
    and so does a link in it; an address of another kind is not compared at all.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    found = [each.dirpath for each in callbacks if isinstance(each, ModelCheckpoint)]
    folders = [str(each) for each in found if each]
    if not _is_local_file_protocol(path):
        kind = str(path).partition("://")[0]
        is_known = any(each.startswith(f"{kind}://") for each in folders)
        return None if is_known or not folders else f"no checkpoint is saved to {kind}://"
    if ".." in Path(path).parts:
        return "its path leads upwards"
    place = local_path(path).absolute()
    for each in (local_path(folder).absolute() for folder in folders if "://" not in folder):
        if each in place.parents and not place.parent.resolve().is_relative_to(each.resolve()):
            return f"a link leads from {each} to it"
    return None


def newest_checkpoint(trainer: pl.Trainer) -> Path | None:
    """Returns what `ckpt_path="last"` means: the newest checkpoint by what they say of themselves.

    Its checksums are compared when it is loaded; see `begin`. What is damaged as far as the ends of
    the files tell is warned of here.

    Raises:
        DamagedCheckpointError: All that there are are damaged.
    """
    from ..checkpoint.candidates import candidates  # it loads what reads checkpoints

    damaged: list[str] = []
    found = candidates(checkpoint_folders(trainer), damaged)
    if damaged and not found:
        raise DamagedCheckpointError(
            f"ckpt_path='last': there is no checkpoint that is whole. {' '.join(damaged)}"
        )
    for problem in damaged:
        rank_zero_warn(f"{problem}\nckpt_path='last' means {found[0].path} instead.")
    return found[0].path if found else None


def begin(
    trainer: pl.Trainer, load: Callable[[Any], None], path: _PATH | None, *, is_newest: bool
) -> None:
    """Begins a fit: removes what a killed one has left, then loads what it goes on from.

    Args:
        trainer: Whose ranks are connected.
        load: Reads a checkpoint, and raises if that is damaged.
        path: The checkpoint; None for a fit that begins anew.
        is_newest: Whether `newest_checkpoint` chose it, and not the user.

    Raises:
        DamagedCheckpointError: It is damaged, and so is each that could take its place.
    """
    begin_session()
    strategy: Any = trainer.strategy
    strategy.saving.switch_on()
    if trainer.is_global_zero:
        is_local = path is not None and _is_local_file_protocol(path)
        beside = [local_path(path).parent] if path is not None and is_local else []
        for folder in {*checkpoint_folders(trainer), Path(trainer.default_root_dir), *beside}:
            sweep(folder)
    if path is None:
        load(None)
        return
    from ..checkpoint.candidates import read_manifest_if_any

    used = _load_valid(trainer, load, path, is_newest=is_newest)
    manifest = read_manifest_if_any(used) if used is not None else None
    if manifest is not None:
        continue_run(manifest.run)


def _load_valid(
    trainer: pl.Trainer, load: Callable[[Any], None], path: _PATH, *, is_newest: bool
) -> Path | None:
    """Loads a checkpoint or one that takes its place; returns which, if it is local."""
    if not _is_local_file_protocol(path):
        load(path)
        return None
    chosen = local_path(path)
    try:
        load(path)
        return chosen
    except DamagedCheckpointError as error:
        problem = error
    found: Any = None
    if trainer.is_global_zero:
        found = _instead_of(trainer, chosen, is_newest=is_newest)
    others, why_no_other = trainer.strategy.broadcast(found)
    for other in others:
        begins = "begins anew" if other is None else f"goes on from {other}"
        rank_zero_warn(f"{problem}\nThe fit {begins} instead.")
        try:
            load(other)
            return None if other is None or "://" in other else local_path(other)
        except DamagedCheckpointError as error:
            problem = error
    raise DamagedCheckpointError(f"{problem} The fit cannot go on from another: {why_no_other}.")


def _instead_of(
    trainer: pl.Trainer, chosen: Path, *, is_newest: bool
) -> tuple[list[str | None], str]:
    """Returns what takes a damaged checkpoint's place, best first, and why there is no other.

    None stands for a new beginning.
    """
    from ..checkpoint.candidates import candidates, fallbacks

    of_job = trainer.strategy.auto_resume.instead  # type: ignore[attr-defined]
    if of_job:
        return [*of_job], "all that this job has saved, and what it began with, is damaged"
    if is_newest:
        found = [each.path for each in candidates(checkpoint_folders(trainer))]
        why = "its folder has no other that is valid"
    else:
        found = fallbacks(chosen)
        why = f"{chosen.parent} has no earlier one of the same run that is valid"
    return [str(each) for each in found if each != chosen], why
