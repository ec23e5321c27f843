"""Lightning's Tuner on an HPU: it tries what would end a run, and loads what it has saved."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_gaudi._core import own_pickles
from lightning_gaudi.checkpoint.errors import UntrustedCheckpointError
from lightning_gaudi.reliability.finite import LossNotFiniteError
from tests.helpers.tiny import batches, hpu_trainer

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


class Color(Enum):
    """A hyperparameter."""

    RED = 1
    GREEN = 2


class Regression(pl.LightningModule):
    """Learns by plain gradient descent, which diverges at a high rate."""

    def __init__(self, lr: float = 1e-3, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(8, 1)
        self.batch_size = 2

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]).squeeze(-1) - batch[0].sum(-1)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


_TO_INFINITY: dict[str, Any] = {"min_lr": 1e-4, "max_lr": 1e9, "early_stop_threshold": None}


def test_the_finder_of_rates_goes_on_to_infinite_losses(tmp_path: Path) -> None:
    model = Regression()
    trainer = hpu_trainer(max_steps=4, default_root_dir=tmp_path)
    found = Tuner(trainer).lr_find(model, batches(100), num_training=100, **_TO_INFINITY)
    assert found is not None
    assert not all(map(math.isfinite, found.results["loss"]))
    assert 1e-4 < (found.suggestion() or 0) < 1
    trainer.fit(model, batches(4))
    assert trainer.global_step == 4


def test_the_fit_behind_a_finder_still_ends_at_an_infinite_loss(tmp_path: Path) -> None:
    finder = LearningRateFinder(num_training_steps=100, **_TO_INFINITY)

    class Bad(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            is_fit = finder.optimal_lr is not None
            return loss * torch.inf if is_fit and batch_idx == 1 else loss

    trainer = hpu_trainer(max_steps=4, callbacks=[finder], default_root_dir=tmp_path)
    with pytest.raises(LossNotFiniteError, match="The loss of step 2 on rank 0 is inf"):
        trainer.fit(Bad(), batches(100))


@pytest.mark.slow
def test_the_finder_of_batch_sizes_takes_infinite_losses(tmp_path: Path) -> None:
    class Infinite(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * torch.inf if len(batch) < 8 else loss

        def train_dataloader(self) -> Any:
            data: Any = torch.ones(64, 1, 8)
            return DataLoader(data, batch_size=self.batch_size)

        def val_dataloader(self) -> Any:
            return batches(1)

    model = Infinite()
    finder = BatchSizeFinder(max_trials=3, steps_per_trial=2)
    hpu_trainer(max_steps=2, callbacks=[finder], default_root_dir=tmp_path).fit(model)
    assert model.batch_size == 8  # the third of three trials


@pytest.fixture
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pickles, "_told", set())


OPTIONS = {
    "enum": Color.RED,
    "partial": functools.partial(torch.optim.SGD, lr=0.1),
    "class": Color,
    "module": nn.Linear(2, 2),
    "function": math.sqrt,
    "path": Path("a"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_told")
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore:Attribute .* is an instance of `nn.Module`")
def test_what_this_process_has_saved_it_loads(name: str, tmp_path: Path) -> None:
    model = Regression(**{name: OPTIONS[name]})
    saving = ModelCheckpoint(tmp_path, monitor="val")
    trainer = hpu_trainer(
        max_epochs=1, callbacks=[saving], enable_checkpointing=True, default_root_dir=tmp_path
    )
    with pytest.warns() as caught:
        trainer.fit(model, batches(4), batches(1))
    told = [str(each.message) for each in caught if "A checkpoint holds" in str(each.message)]
    assert bool(told) is (name != "path")
    assert all("add_safe_globals" in each for each in told)
    trainer.validate(model, batches(1), ckpt_path="best", verbose=False)
    loaded = Regression.load_from_checkpoint(saving.best_model_path)
    assert type(loaded.hparams[name]) is type(OPTIONS[name])
    if name == "enum":
        _check_that_others_refuse(saving.best_model_path)


def _check_that_others_refuse(path: str) -> None:
    """Refuse it in another process, and here once the file is another."""
    load = f"from lightning_gaudi.checkpoint.files import load_file; load_file({path!r})"
    done = subprocess.run(
        [sys.executable, "-c", load], check=False, capture_output=True, text=True, timeout=120
    )
    assert "UntrustedCheckpointError" in done.stderr
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["hyper_parameters"]["enum"] = Color.GREEN
    torch.save(checkpoint, path)
    with pytest.raises(UntrustedCheckpointError, match="Color"):
        Regression.load_from_checkpoint(path)
