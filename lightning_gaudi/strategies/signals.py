"""`Ending`, which ends a fit after a signal between two steps on all ranks, with its state saved.

After SIGTERM the fit saves and ends with the exit status 143. On several cards it does so after
Ctrl-C, too, with 130, and a second Ctrl-C ends it at once. After the signal by which SLURM
announces the end of a job's time, it saves, asks SLURM to run the job again, and ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_prefixed_message

from lightning_gaudi._core import collectives, processes
from lightning_gaudi._core.processes import farewell
from lightning_gaudi._core.processes.rank_monitor import INTERRUPTED, STOPPED, is_second, say
from lightning_gaudi._patches.apply import replace
from lightning_gaudi.reliability.guard import Part

log = logging.getLogger(__name__)

_SIGINT, _SIGTERM, _REQUEUE = 1, 2, 3
"""Reasons to stop. If ranks have different ones, the largest counts."""


class Ending(Part):
    """Stops all ranks before the same step, whichever of them got a signal.

    It replaces methods of this Trainer. Lightning broadcasts through the devices before each step
    whether rank 0 got a SIGTERM, and waits for the answer; its handler takes part in that
    broadcast. After SLURM's signal it saves in the middle of a step, and trains on.

    Args:
        strategy: Of the Trainer. Without `save_on_exit`, SLURM's signal is left to Lightning.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._trainer: Any = None
        self._saves = False
        self._asked = 0
        self._agreed = 0
        self._agreement = collectives.StopAgreement()
        self._interrupts: InterruptWatch | None = None

    def begin(self) -> None:
        """Replaces Lightning's handlers for this run."""
        trainer = self._trainer = self._strategy.lightning_module.trainer
        self._saves = self._strategy.reliability.save_on_exit
        self._asked = self._agreed = 0
        self._agreement = collectives.StopAgreement()
        connector, loop = trainer._signal_connector, trainer.fit_loop.epoch_loop
        replace("sigterm", connector, "_sigterm_notifier_fn", self._note_sigterm)
        replace("sigterm", loop, "_broadcast_sigterm_tensor", self._agree)
        if self._saves:
            replace("sigterm", connector, "_slurm_sigusr_handler_fn", self._note_requeue)

    def start(self) -> None:
        """Delays Ctrl-C on several cards to the end of a step, unless the user handles it.

        Before this there is nothing to save.
        """
        is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # Python lets only the main thread set handlers.
        is_main = threading.current_thread() is threading.main_thread()
        if self._trainer.world_size > 1 and is_free and is_main and self._interrupts is None:
            signal.signal(signal.SIGINT, self._note_sigint)
            self._interrupts = InterruptWatch(self._announce, self._end_at_once)

    def batch(self) -> None:
        """Ends a fit on one card after the coming step, unless that would lose gradients."""
        if self._trainer.world_size > 1 or not self._asked:
            return
        if not self._trainer.fit_loop._should_accumulate():
            self._stop(self._asked)

    def exception(self, exception: BaseException) -> None:
        """Saves the state and sets the exit status, unless a callback has done so.

        Args:
            exception: What ends the run; nothing is done unless a signal is behind it.
        """
        if self._trainer is None or not isinstance(exception, SIGTERMException):
            return
        status = INTERRUPTED if self._agreed == _SIGINT else STOPPED
        is_settled, exception.code = exception.code is not None, exception.code or status
        if self._trainer.state.fn != TrainerFn.FITTING or not self._saves:
            return
        try:
            if self._agreed == _REQUEUE:
                self._requeue()
            elif not is_settled:
                self._tell(_save(self._trainer))
        except Exception as error:
            say(f"the last state could not be saved: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Restores Ctrl-C, and waits for the agreement that is under way."""
        self.close()
        self._agreement.finish()

    def close(self) -> None:
        """Restores Python's own handling of Ctrl-C."""
        if self._interrupts is not None:
            self._interrupts.close()
            self._interrupts = None
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note_sigint(self, signum: Any, frame: Any) -> None:
        # A handler runs between any two lines of the program, so it only sets a number.
        self._asked = self._asked or _SIGINT

    def _announce(self) -> None:
        if self._trainer.is_global_zero:
            say("Ctrl-C: the fit ends after this step. Again: at once")

    def _end_at_once(self) -> None:
        if self._trainer.is_global_zero:
            say("Ctrl-C again: the fit ends at once, and its last steps are not saved")
        processes.end_now(INTERRUPTED)

    def _note_sigterm(self, signum: Any, frame: Any) -> None:
        trainer = self._trainer
        log.info(rank_prefixed_message(f"Received SIGTERM: {signum}", trainer.global_rank))
        launcher = trainer.strategy.launcher
        if launcher is not None and not self._asked:
            launcher.kill(signum)
        self._asked = max(self._asked, _SIGTERM)
        if trainer.state.fn != TrainerFn.FITTING:
            # A validation or test has no state to save.
            raise SIGTERMException(STOPPED)
        # Outside of a training step: nothing is lost if Lightning ends at its next look at the
        # flag.
        if trainer.world_size == 1 and not trainer.training:
            self._stop(self._asked)

    def _note_requeue(self, signum: Any, frame: Any) -> None:
        if self._trainer.state.fn != TrainerFn.FITTING:
            self._let_lightning_requeue(signum, frame)
            return
        log.info(rank_prefixed_message(f"Received {signum}", self._trainer.global_rank))
        self._asked = _REQUEUE
        if self._trainer.world_size == 1 and not self._trainer.training:
            self._stop(self._asked)

    def _agree(self) -> None:
        if self._trainer.fit_loop._should_accumulate():
            # Accumulated gradients are not part of every checkpoint, so a step is completed first.
            return
        if reason := self._agreement.agree(self._asked):
            self._stop(reason)
            farewell.note_agreement()
            raise SIGTERMException

    def _stop(self, reason: int) -> None:
        self._agreed = reason
        self._trainer._signal_connector.received_sigterm = True

    def _requeue(self) -> None:
        """Saves where the job's next run will look, and asks SLURM to run it again."""
        self._let_lightning_requeue(signal.SIGUSR1, None)
        if self._trainer.is_global_zero:
            say(
                f"SLURM's signal ended the fit after step {self._trainer.global_step}: its state "
                f"is saved in {self._trainer.default_root_dir}, and the job is to run again"
            )

    def _let_lightning_requeue(self, signum: Any, frame: Any) -> None:
        connector = self._trainer._signal_connector
        type(connector)._slurm_sigusr_handler_fn(connector, signum, frame)

    def _tell(self, path: str | None) -> None:
        if not self._trainer.is_global_zero:
            return
        by = "Ctrl-C" if self._agreed == _SIGINT else "SIGTERM"
        ended = f"{by} ended the fit after step {self._trainer.global_step}"
        if path is not None:
            say(f'{ended}. {path} has its state; go on with trainer.fit(..., ckpt_path="{path}")')
        elif not self._trainer.checkpoint_callbacks:
            say(f"{ended}. No state was saved, since Trainer(enable_checkpointing=False) says so")
        else:
            say(f"{ended}. There was nothing to save")


def _save(trainer: pl.Trainer) -> str | None:
    """Saves the state as the last checkpoint of the Trainer's `ModelCheckpoint`, on all ranks.

    If that callback saves weights alone, or is of another kind, a whole state is saved as
    `last.ckpt` in its folder or in `default_root_dir`.

    Returns:
        The path, or None if there is nothing to save, or saving is switched off.
    """
    is_rehearsal = trainer.fast_dev_run or trainer.sanity_checking  # type: ignore[attr-defined]
    if not trainer.checkpoint_callbacks or is_rehearsal or not trainer.global_step:
        return None
    found = trainer.checkpoint_callback
    if not isinstance(found, ModelCheckpoint) or found.save_weights_only:
        folder = getattr(found, "dirpath", None) or trainer.default_root_dir
        path = os.path.join(folder, "last.ckpt")  # noqa: PTH118 - may be a URL
        trainer.save_checkpoint(path)
        return path
    if found._last_global_step_saved != trainer.global_step:
        wanted, found.save_last = found.save_last, True
        try:
            # The callback's own method chooses a free name, removes the last one, and notes the
            # path.
            found._save_last_checkpoint(trainer, found._monitor_candidates(trainer))
        finally:
            found.save_last = wanted
    return found._last_checkpoint_saved


def forget_loaders_not_begun(trainer: pl.Trainer) -> None:
    """Keeps Lightning's teardown from asking loaders that never started for their length.

    That would raise another error over the one that ends the run.

    Args:
        trainer: Which ends with an error.
    """
    fit = trainer.fit_loop
    others = (trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    for loop in (fit, fit.epoch_loop.val_loop, *others):
        fetcher = loop._data_fetcher
        loaders = None if fetcher is None else fetcher._combined_loader
        if fetcher is not None and loaders is not None and loaders._iterator is None:
            # Some of several loaders may have started workers.
            loaders.reset()
            fetcher._combined_loader = None


class InterruptWatch:
    """Calls functions from a thread at the first Ctrl-C and at the second.

    Python's handler does not run while the main thread waits in native code, such as in a
    collective for a rank that may never come. The main thread makes and closes this object.

    Args:
        at_first: Called in a thread.
        at_second: The same.
    """

    def __init__(self, at_first: Callable[[], None], at_second: Callable[[], None]) -> None:
        self._at_first, self._at_second = at_first, at_second
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        # `set_wakeup_fd` has the C handler write the signal's number to this pipe at once. It
        # refuses a blocking descriptor, on which the handler could hang.
        os.set_blocking(self._write_end, False)
        self._before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="interrupts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        signal.set_wakeup_fd(self._before)
        os.close(self._write_end)
        # A forked worker inherits the object without the thread.
        if os.getpid() == self._pid:
            self._thread.join()
        os.close(self._read_end)

    def _run(self) -> None:
        times: list[float] = []
        while signals := os.read(self._read_end, 64):
            # There is one wakeup descriptor for the process, so its earlier owner is told, too.
            if self._before != -1:
                with contextlib.suppress(OSError):
                    os.write(self._before, signals)
            if signal.SIGINT not in signals:
                continue
            times.append(time.monotonic())
            if len(times) == 1:
                self._at_first()
            elif is_second(times):
                self._at_second()
