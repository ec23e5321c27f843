"""A fit that torchrun or SLURM has started again goes on from the newest checkpoint it has saved.

Which one is decided where Lightning is about to load what `ckpt_path` says; the patch
"auto-resume" asks here. The rule:

- At the first start of a job `ckpt_path` counts, and none means from the beginning.
- At a further start the fit's own newest valid checkpoint counts, if it has saved one: a fit that
  began with `ckpt_path=X` has since gone on from X. Otherwise it begins as at the first start.
- But where the program passes another `ckpt_path` than at the first start, one that this fit has
  not saved, it has looked for itself, and that counts.

A fit is known again by its job, the command, the model's class and how many fits of that class
came before it in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_gaudi._core.rank_monitor import say
from lightning_gaudi.reliability.jobs import Job, count_fit, find_job

if TYPE_CHECKING:
    from ..checkpoint.job_record import JobRecord


class AutoResume:
    """What a strategy of the Trainer decides and writes down for the case of a further start.

    Args:
        strategy: The one that is asked.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._record: JobRecord | None = None
        self.instead: Sequence[Any] = ()
        """What a further start begins with if the checkpoint that was chosen for it is damaged:
        paths, the best first, then what the program asks for, None for nothing. Empty where the
        choice was the program's, and on ranks other than 0."""

    def choose_checkpoint(self, trainer: pl.Trainer, given: Any) -> Any:
        """Returns what the Trainer begins with; all ranks call this when they are connected.

        Args:
            trainer: The one of this strategy, about to load a checkpoint.
            given: What `ckpt_path` has come to; None for nothing.

        Returns:
            A path, the same on all ranks, or `given`.
        """
        self._record, self.instead = None, ()
        if trainer.state.fn != TrainerFn.FITTING:
            return given
        model = type(trainer.lightning_module).__qualname__
        fit, job = (*sys.argv, model, str(count_fit(model))), find_job()
        if job is None or not self._can_note(trainer):
            return given
        from ..checkpoint.job_record import JobRecord  # for who has a job to find again

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
            except (OSError, ValueError, LookupError, TypeError) as error:
                _warn(record, error)
        chosen = self._strategy.broadcast(chosen)
        return given if chosen is None else chosen

    def _can_note(self, trainer: pl.Trainer) -> bool:
        is_trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        is_remote = "://" in str(trainer.default_root_dir)
        return self._strategy.reliability.auto_resume and not is_trial and not is_remote

    @contextmanager
    def noting(self, path: Any, *, weights_only: bool) -> Iterator[None]:
        """Writes down what is saved in this context, if the fit may have to find it again.

        Args:
            path: Where to.
            weights_only: Whether a fit could not go on from there.
        """
        record = self._record
        if record is None or weights_only or "://" in str(path):
            yield
            return
        absolute = str(Path(path).absolute())
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


def _choose(
    record: JobRecord, job: Job, given: str | None, *, is_restarted: bool
) -> Sequence[Path]:
    """Returns the fit's own checkpoints, newest first; none if it begins with what was given."""
    from ..checkpoint.candidates import whole

    agent, again = record.read(), f"{job.scheduler} has started this again; "
    if agent is None or not job.is_restart_of(agent, is_restarted=is_restarted):
        record.begin(given)
        if is_restarted:
            say(f"{again}nothing that it saved is known, so it begins as at first")
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
    """Gives the path that the program asks for; what Lightning finds for a job of SLURM is none."""
    if given is None or given == trainer._checkpoint_connector._hpc_resume_path:
        return None
    return str(given if "://" in str(given) else Path(given).absolute())


def _warn(record: JobRecord, error: Exception) -> None:
    rank_zero_warn(
        f"{record.path} cannot be used ({error}): if torchrun or SLURM starts this run again, it "
        "may begin anew. Pass another default_root_dir to the Trainer, or auto_resume=off."
    )
