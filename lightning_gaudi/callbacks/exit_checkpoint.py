"""Saves the last state of a fit that a signal or an error ends, and says how to resume."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim import Optimizer

__all__ = ["OnExitCheckpoint"]


class OnExitCheckpoint(Callback):
    """Saves the state with which a fit ends, whether finished, interrupted or failed.

    The state becomes the `last` checkpoint of the Trainer's first `ModelCheckpoint`, whose
    `save_last` is turned on unless it is False. Without a `ModelCheckpoint` nothing is saved.

    Ctrl-C and SIGTERM take effect between two steps, on all ranks before the same one, so that a
    resumed run has the losses of an uninterrupted one. A second Ctrl-C ends the process at once; a
    file that is being written is then discarded. After an error the state is that of the last step,
    and a resumed run leaves out the batch that failed. The state is not saved if it may be
    inconsistent, after an error within an update of the weights or on one of several ranks.

    Args:
        resume: instructions for resuming, with `{path}` for the checkpoint, printed when a fit ends
            early.

    Attributes:
        path: the newest state that was saved, or None.
        signal: that ended the fit, or None.
    """

    def __init__(self, resume: str = 'trainer.fit(..., ckpt_path="{path}")') -> None:
        self.resume = resume
        self.path: Path | None = None
        self.signal: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._is_updating = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Turns on `save_last` of the `ModelCheckpoint`."""
        checkpoint = _model_checkpoint(trainer)
        if stage == "fit" and checkpoint is not None and checkpoint.save_last is None:
            checkpoint.save_last = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes signals wait for the end of a step from here on."""
        self.path, self.signal, self._is_updating = None, None, False
        environment = trainer._accelerator_connector.cluster_environment
        taken = [signal.SIGINT]
        # With auto_requeue Lightning handles SIGTERM itself under SLURM.
        if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
            taken.append(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            self._handlers = {each: signal.getsignal(each) for each in taken}
            for each in taken:
                signal.signal(each, self._handler(trainer))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Notes that an update has begun, until whose end weights may be of different steps."""
        self._is_updating = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the loop here if a signal has come, unless gradients would be lost."""
        self._is_updating = False
        if self.signal and trainer.world_size == 1:
            is_whole = not trainer.fit_loop._should_accumulate()
            trainer._signal_connector.received_sigterm = is_whole

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves what was trained since the last checkpoint."""
        self._restore_handlers()
        self._save(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Saves the state if it is consistent, and says where it is."""
        if trainer.state.fn != "fit" or not self._handlers:
            return
        if self.signal is None and isinstance(exception, SIGTERMException):
            # Another rank has got the signal, and all ranks have agreed to end.
            self.signal = signal.SIGTERM
        try:
            if self._is_consistent(trainer, exception):
                self._save(trainer)
        except Exception as error:
            rank_zero_warn(f"The last state could not be saved: {error}")
        finally:
            self._restore_handlers()
        if self.signal is not None and isinstance(exception, SIGTERMException):
            exception.code = 128 + self.signal  # as a shell has it
        if trainer.is_global_zero:
            print(self._summary(trainer), flush=True)

    def _is_consistent(self, trainer: Trainer, exception: BaseException) -> bool:
        """Returns whether all ranks are here, between the same two steps."""
        if isinstance(exception, SIGTERMException):  # which the ranks have agreed on
            return True
        return trainer.world_size == 1 and not self._is_updating

    def _save(self, trainer: Trainer) -> None:
        checkpoint = _model_checkpoint(trainer)
        if checkpoint is None or not checkpoint.save_last or not trainer.global_step:
            return
        if trainer.fast_dev_run or trainer.sanity_checking:  # type: ignore[attr-defined]
            return
        if checkpoint._last_global_step_saved != trainer.global_step:
            # The callback's own method chooses a free name, removes the last one, and notes the
            # path.
            checkpoint._save_last_checkpoint(trainer, checkpoint._monitor_candidates(trainer))

    def _summary(self, trainer: Trainer) -> str:
        checkpoint = _model_checkpoint(trainer)
        self.path = newest_checkpoint(trainer)
        ended = f"\nThe fit ended early, after step {trainer.global_step}."
        if checkpoint is None or self.path is None:
            return f"{ended} No checkpoint was saved."
        saved = checkpoint._last_global_step_saved
        of = "its state" if saved == trainer.global_step else f"the state after step {saved}"
        return f"{ended} {self.path} has {of}. To go on:\n  {self.resume.format(path=self.path)}"

    def _handler(self, trainer: Trainer) -> Callable[[int, Any], None]:
        def note(signum: int, frame: Any) -> None:
            if signum == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                if trainer.is_global_zero:
                    print("\nCtrl-C: ending after this step. Again: at once.", flush=True)
            if self.signal is not None:
                return
            self.signal = signal.Signals(signum)
            # The earlier handler, Lightning's or the strategy's, tells all ranks.
            if trainer.world_size > 1:
                self._agree(frame)

        return note

    def _agree(self, frame: Any) -> None:
        handler = self._handlers.get(signal.SIGTERM) or signal.getsignal(signal.SIGTERM)
        if callable(handler):
            handler(signal.SIGTERM, frame)

    def _restore_handlers(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers = {}


def newest_checkpoint(trainer: Trainer) -> Path | None:
    """Returns the newest checkpoint of the Trainer's ModelCheckpoint in this run, if any."""
    checkpoint = _model_checkpoint(trainer)
    if checkpoint is None:
        return None
    path = checkpoint.last_model_path or checkpoint._last_checkpoint_saved
    return Path(path) if path and Path(path).exists() else None


def _model_checkpoint(trainer: Trainer) -> ModelCheckpoint | None:
    found = trainer.checkpoint_callback
    return found if isinstance(found, ModelCheckpoint) else None
