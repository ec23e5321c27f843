"""Decides which checkpoint a fit resumes from: the given one, or a better one.

If the given one is damaged, another takes its place. If torchrun or SLURM has started the fit
again, it is the newest one that the fit has saved; see `AutoResume`.
"""

from __future__ import annotations

import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._core.collectives import gather_objects, is_connected, on_rank_zero
from lightning_gaudi._core.processes.rank_monitor import say
from lightning_gaudi._core.progress import begin_session, continue_run, count_fit
from lightning_gaudi.reliability.guard import Part
from lightning_gaudi.untrusted import printable

from ..checkpoint.errors import DamagedCheckpointError
from ..checkpoint.folders import AnyPath, local_path, place_of
from ..checkpoint.leftovers import sweep
from .jobs import JOB_ID, Job, JobRecord, find_job

_PATIENCE_S = 5.0
"""How long a checkpoint that other ranks see may take to appear on this rank."""


def checkpoint_folders(trainer: pl.Trainer) -> list[AnyPath]:
    """Returns the folders that a Trainer's callbacks save to."""
    found: list[Any] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint):
            # The callback sets `dirpath` in `setup`, which may not have run yet. This private
            # method finds it before (2.5.6 to 2.6.6).
            resolve = getattr(callback, "_ModelCheckpoint__resolve_ckpt_dir", None)
            found.append(resolve(trainer) if resolve is not None else callback.dirpath)
        elif isinstance(callback, OnExceptionCheckpoint):
            found.append(callback.dirpath)
    return [place_of(each) for each in found if each]


def why_not_remove(trainer: pl.Trainer, path: _PATH) -> str | None:
    """Returns why a checkpoint that a callback asks to remove must stay; None if it may go.

    `ModelCheckpoint` reads the paths that it removes from the checkpoint that the fit resumed from,
    which may be somebody else's. Lightning compares only how paths begin, so `folder/../other` and
    a link in `folder` pass, and an address of another protocol is not compared at all.
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


def newest_checkpoint(trainer: pl.Trainer) -> AnyPath | None:
    """Returns the checkpoint that `ckpt_path="last"` means: the newest by its manifest.

    Its checksums are compared when it is loaded; see `begin`. Damage that the ends of the files
    show is warned of here.

    Raises:
        DamagedCheckpointError: There are checkpoints, and all are damaged.
    """
    from ..checkpoint.candidates import candidates  # needed where a checkpoint is read

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
    """Begins a fit: removes what a killed one has left, and loads the checkpoint to resume from.

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
        _check_places(trainer)
        beside = [local_path(path).parent] if path and _is_local_file_protocol(path) else []
        root = place_of(trainer.default_root_dir)
        # Only folders of this machine's file systems: a store has no locks by which to tell a
        # killed save.
        for folder in {*checkpoint_folders(trainer), root, *beside}:
            if isinstance(folder, Path):
                sweep(folder)
    if path is None or str(path).startswith(("http:", "https:")):
        # A file of the web is read-only and no run's own: there is nothing to take its place.
        load(path)
        return
    _check_shared(path)
    from ..checkpoint.candidates import read_manifest_if_any

    used = _load_valid(trainer, load, path, is_newest=is_newest)
    manifest = read_manifest_if_any(used) if used is not None else None
    if manifest is not None:
        continue_run(manifest.run, manifest.age[0])


def _check_places(trainer: pl.Trainer) -> None:
    """Raises before the first step if checkpoints cannot be saved to an address.

    Raises:
        OSError: An address cannot be written.
    """
    is_trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
    for place in dict.fromkeys([] if is_trial else checkpoint_folders(trainer)):
        if not isinstance(place, Path):
            from ..checkpoint.remote import check_reachable

            check_reachable(str(place))


def _check_shared(path: _PATH) -> None:
    """Refuses to load a checkpoint that some ranks see and others do not.

    Raises:
        MisconfigurationException: Some do not.
    """
    place = place_of(path)
    # If no rank sees it, each raises the same error as it loads. If some do, these would wait for
    # the others for ever.
    without, is_mixed = _unseen_by(place.exists())
    if is_mixed:
        without, is_mixed = _unseen_by(_appears(place))
    if is_mixed:
        raise MisconfigurationException(
            f"There is no checkpoint {path} on the disk of rank {', '.join(without)}; other "
            "ranks see it. Each node seems to have a disk of its own there. Pass a "
            "default_root_dir (or a dirpath of ModelCheckpoint) on a file system that all nodes "
            "share, or an address such as s3://bucket/run."
        )


def _unseen_by(is_there: bool) -> tuple[list[str], bool]:
    """Returns the ranks that do not see a path, and whether others do.

    Args:
        is_there: Whether this rank sees it.
    """
    seen = gather_objects((socket.gethostname(), is_there)) if is_connected() else []
    without = [f"{rank} ({host})" for rank, (host, sees) in enumerate(seen) if not sees]
    return without, 0 < len(without) < len(seen)


def _appears(place: AnyPath) -> bool:
    """Returns whether a path exists, or appears within a moment.

    A client of NFS may show a folder as it was up to 60 s ago (nfs(5), `acdirmax`), unless that is
    opened anew, which listing it does.
    """
    end = time.monotonic() + _PATIENCE_S
    while not place.exists():
        with suppress(OSError):
            next(iter(place.parent.iterdir()), None)
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _load_valid(
    trainer: pl.Trainer, load: Callable[[Any], None], path: _PATH, *, is_newest: bool
) -> AnyPath | None:
    """Loads a checkpoint, or one that takes its place, and returns the one that was loaded."""
    chosen = place_of(path)
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
            return None if other is None else place_of(other)
        except DamagedCheckpointError as error:
            problem = error
    raise DamagedCheckpointError(f"{problem} The fit cannot go on from another: {why_no_other}.")


def _instead_of(
    trainer: pl.Trainer, chosen: AnyPath, *, is_newest: bool
) -> tuple[list[str | None], str]:
    """Returns what takes a damaged checkpoint's place, best first, and why there is nothing else.

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


class AutoResume(Part):
    """Chooses the checkpoint of a job that was started again, and records what the fit saves.

    The patch "auto-resume" asks it when Lightning is about to load what `ckpt_path` names. The
    rule:

    - At the first start of a job `ckpt_path` counts, and none means from the beginning.
    - At a further start the fit's own newest valid checkpoint counts, if it has saved one, since a
      fit that began with `ckpt_path=X` has trained on from X. Otherwise it begins as at the first.
    - If the program passes a `ckpt_path` other than at the first start, and not one that this fit
      has saved, it has searched for itself, and that counts.

    A fit is recognized by its job, the command, the model's class, and the number of fits of that
    class before it in the program.

    Args:
        strategy: Of the Trainer.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._record: JobRecord | None = None
        self._is_named = False
        """Whether the user has named the job and rank 0 has a record; the same on all ranks."""
        self.instead: Sequence[Any] = ()
        """What a further start begins with if the chosen checkpoint is damaged: paths, the best
        first, then what the program asks for, None for nothing. Empty if the choice was the
        program's, and on ranks other than 0."""

    def choose_checkpoint(self, trainer: pl.Trainer, given: Any) -> Any:
        """Returns the checkpoint to begin with; all ranks call this when they are connected.

        Args:
            trainer: The one of this strategy, about to load a checkpoint.
            given: The path that `ckpt_path` stands for; None for nothing.

        Returns:
            A path, the same on all ranks, or `given`.
        """
        self._record, self.instead, self._is_named = None, (), False
        if trainer.state.fn != TrainerFn.FITTING:
            return given
        model = type(trainer.lightning_module).__qualname__
        fit, job = (*sys.argv, model, str(count_fit(model))), find_job()
        if job is None or not self._can_note(trainer):
            return given
        # The agents of torchrun may count differently: a node that was replaced begins at 0.
        is_restarted = self._strategy.reduce_boolean_decision(job.num_restarts > 0, all=False)
        chosen = None
        if self._strategy.is_global_zero:
            record = JobRecord(trainer.default_root_dir, job.name, job.agent, fit)
            try:
                own = _choose(record, job, _asked_for(trainer, given), is_restarted=is_restarted)
                if own:
                    chosen, *others = map(str, own)
                    self.instead = (*others, None if given is None else str(given))
                self._record = record
            # The record is a convenience, and a file that anything may have damaged: it must not
            # keep a fit from starting.
            except (OSError, ValueError, LookupError, TypeError) as error:
                _warn(record, error)
        is_named = self._record is not None and job.is_named
        chosen, self._is_named = self._strategy.broadcast((chosen, is_named))
        return given if chosen is None else chosen

    def end(self) -> None:
        """Records that the fit has ended."""
        if self._record is not None:
            try:
                self._record.end()
            except OSError as error:
                _warn(self._record, error)

    def _can_note(self, trainer: pl.Trainer) -> bool:
        is_trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        return self._strategy.reliability.auto_resume and not is_trial

    @contextmanager
    def noting(self, path: Any, *, weights_only: bool) -> Iterator[None]:
        """Records a checkpoint that is saved in this context, for a further start to find.

        Args:
            path: Where it is saved.
            weights_only: Whether a fit could not go on from there.

        Raises:
            TakenOverError: The job has been started again meanwhile; on all ranks.
        """
        record = self._record
        if self._is_named:
            on_rank_zero(self._check_own)
        if record is None or weights_only:
            yield
            return
        absolute = _absolute(path)
        try:
            record.is_about_to_save(absolute)
        except OSError as error:
            _warn(record, error)
        yield
        strategy = self._strategy
        is_async = isinstance(strategy.checkpoint_io, AsyncCheckpointIO)
        is_async |= strategy.reliability.async_save
        try:
            record.has_saved(absolute, is_written=not is_async)
        except OSError as error:
            _warn(record, error)

    def _check_own(self) -> None:
        assert self._record is not None
        try:
            self._record.check_own()
        except OSError as error:
            _warn(self._record, error)


def _choose(
    record: JobRecord, job: Job, given: str | None, *, is_restarted: bool
) -> Sequence[AnyPath]:
    """Returns the fit's own checkpoints, newest first; none if it begins with what is given."""
    from ..checkpoint.candidates import whole

    agent, again = record.read(), f"{job.scheduler} has started this again; "
    is_known = agent is not None and job.is_restart_of(
        agent, is_restarted=is_restarted, has_ended=record.has_ended
    )
    if not is_known:
        left = [] if record.has_ended else record.saved()
        record.begin(given)
        is_new = agent is None and job.is_named and given is None
        if others := record.commands_before() if is_new else []:
            command = printable(shlex.join(others[-1]), max_chars=300)
            say(
                f"it begins at the first step: this job has saved before, by another command "
                f"({command}). To go on from there, start it by that one, or pass ckpt_path"
            )
        elif is_restarted:
            say(f"{again}nothing that it saved is known, so it begins as at first")
        elif left and given is None:
            say(
                f"it begins at the first step, though this command has saved {left[-1]} before and "
                "did not end: nothing says that this is the same job. If it is, set "
                f"{JOB_ID} to a name of the job, the same at each start, or pass ckpt_path='last'"
            )
        return ()
    saved = record.saved()
    if given not in (None, record.first_path, *map(str, saved)):
        record.begin(given)
        say(f"{again}it goes on from ckpt_path={given!r}")
        return ()
    found = whole(saved)
    if found:
        say(f"{again}it goes on from {found[0]}")
    else:
        say(f"{again}it had saved no checkpoint that is whole, so it begins as at first")
    return found


def _asked_for(trainer: pl.Trainer, given: Any) -> str | None:
    """Returns the path that the program asks for; None if Lightning found it for a SLURM job."""
    if given is None or given == trainer._checkpoint_connector._hpc_resume_path:
        return None
    return _absolute(given)


def _absolute(path: Any) -> str:
    return str(path if "://" in str(path) else Path(path).absolute())


def _warn(record: JobRecord, error: Exception) -> None:
    rank_zero_warn(
        f"{record.path} cannot be used ({error}): if this run is started again, it may begin anew. "
        "Pass another default_root_dir to the Trainer, or auto_resume=off."
    )
