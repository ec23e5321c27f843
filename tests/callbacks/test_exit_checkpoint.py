import os
import signal

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_gaudi.callbacks import OnExitCheckpoint
from tests.callbacks.test_history import Model
from tests.helpers.tiny import QUIET

NEVER = {"every_n_train_steps": 100, "save_on_train_epoch_end": False}
QUIET = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"}


class EndWithin(Callback):
    """Raise, or send a signal, in a hook of the fourth micro-batch."""

    def __init__(self, hook: str, error: BaseException | signal.Signals) -> None:
        self.error, self.count = error, 0
        setattr(self, hook, self._end)

    def _end(self, *arguments) -> None:
        self.count += 1
        if self.count == 4 and isinstance(self.error, signal.Signals):
            os.kill(os.getpid(), self.error)
        elif self.count == 4:
            raise self.error


def _fit(tmp_path, *callbacks, **settings):
    loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
    options = {"accelerator": "cpu", "max_steps": 6, "limit_val_batches": 0}
    trainer = Trainer(
        **(QUIET | options | settings),
        default_root_dir=tmp_path,
        callbacks=[OnExitCheckpoint(), ModelCheckpoint(tmp_path, **NEVER), *callbacks],
    )
    trainer.fit(Model(), loader, loader)
    return trainer


def _saved(tmp_path) -> int:
    return torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"]


def test_the_end_of_a_fit_is_saved_where_no_checkpoint_was_due(tmp_path):
    _fit(tmp_path)
    assert _saved(tmp_path) == 6


def test_an_error_leaves_the_last_whole_step_and_stays_the_error(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError, match="mine"):
        _fit(tmp_path, EndWithin("on_after_backward", ZeroDivisionError("mine")))
    assert _saved(tmp_path) == 3
    assert f'trainer.fit(..., ckpt_path="{tmp_path}/last.ckpt")' in capsys.readouterr().out


def test_an_error_within_an_update_of_the_weights_saves_nothing(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError):
        _fit(tmp_path, EndWithin("on_before_optimizer_step", ZeroDivisionError()))
    assert not list(tmp_path.glob("*.ckpt"))
    assert "No checkpoint was saved." in capsys.readouterr().out


def test_a_signal_waits_for_gradients_that_are_being_accumulated(tmp_path):
    end = EndWithin("on_after_backward", signal.SIGTERM)
    with pytest.raises(SystemExit):
        _fit(tmp_path, end, accumulate_grad_batches=3)
    assert _saved(tmp_path) == 2
    assert end.count == 6


def test_handlers_are_given_back(tmp_path):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    _fit(tmp_path)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_explicit_save_last_false_is_obeyed(tmp_path):
    loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
    callbacks = [OnExitCheckpoint(), ModelCheckpoint(tmp_path, save_last=False, **NEVER)]
    options = {"accelerator": "cpu", "max_steps": 2, "limit_val_batches": 0, **QUIET}
    Trainer(callbacks=callbacks, **options).fit(Model(), loader, loader)
    assert not list(tmp_path.glob("*.ckpt"))
