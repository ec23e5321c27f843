"""A fit that resumes draws, counts and learns as the one that never ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tests.helpers.noisy_data import Noisy, Stream
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

NUM_SAMPLES, BATCH_SIZE = 10, 2
Make = Callable[[], Any]


class _StreamWithoutState(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        yield from torch.rand(NUM_SAMPLES, 4)


class _Batches:
    """Iterable, and no DataLoader."""

    def __iter__(self) -> Any:
        yield from torch.rand(4, BATCH_SIZE, 4)


class _Module(pl.LightningModule):
    """Notes each step: epoch, batch, global step, learning rate and the loss in hexadecimal."""

    def __init__(self, scheduler: str | None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.scheduler = scheduler
        self.steps: list[tuple[Any, ...]] = []

    def _note(self, loss: Tensor, kind: str, index: int) -> None:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        at = self.current_epoch, index, self.global_step, rate
        self.steps.append((kind, *at, float(loss.detach()).hex()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        whole = sum(batch) if isinstance(batch, list) else batch
        loss: Tensor = self.net(whole).pow(2).mean() + torch.rand(1).item()
        self._note(loss, "train", batch_idx)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        loss = self.net(batch).pow(2).mean()
        self.log("loss", loss)
        self._note(loss, "validate", batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.scheduler == "plateau":
            plateau = ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "loss"},
            }
        if self.scheduler == "steps":
            # It makes the Trainer iterate the loader before anything is restored.
            total = int(self.trainer.estimated_stepping_batches)
            linear = LinearLR(optimizer, total_iters=total)
            return [optimizer], [{"scheduler": linear, "interval": "step"}]
        return optimizer


class _SaveAlways(pl.Callback):
    """Saves after each step, validation and epoch, and notes how many steps there were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: dict[Path, int] = {}

    def _save(self, trainer: pl.Trainer, module: Any, name: str) -> None:
        path = self.folder / f"{len(self.saved)}-{name}.ckpt"
        trainer.save_checkpoint(path)
        self.saved[path] = len(module.steps)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        self._save(trainer, pl_module, "step")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._save(trainer, pl_module, "validation")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._save(trainer, pl_module, "epoch")


def _fit(
    make: Make, *, seed: int = 1, path: Path | None = None, scheduler: str | None = None, **kw: Any
) -> _Module:
    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed)
    module = _Module(scheduler)
    settings = {"accelerator": "hpu", "devices": 1, "max_epochs": 3, **QUIET, **kw}
    validation = DataLoader(torch.arange(16.0).view(4, 4), batch_size=2)
    pl.Trainer(**settings).fit(module, make(), validation, ckpt_path=path)
    return module


def _check(make: Make, folder: Path, every: int = 4, **settings: Any) -> None:
    saving = _SaveAlways(folder)
    whole = _fit(make, callbacks=[saving], **settings)
    for path, num_steps in list(saving.saved.items())[::every]:
        resumed = _fit(make, seed=99, path=path, **settings)
        assert resumed.steps == whole.steps[num_steps:], path.name
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), (path.name, name)


def _shuffled(**settings: Any) -> DataLoader[Tensor]:
    return DataLoader(Noisy(NUM_SAMPLES), batch_size=BATCH_SIZE, shuffle=True, **settings)


def _with_generator() -> DataLoader[Tensor]:
    return _shuffled(generator=torch.Generator().manual_seed(5))


def _two() -> list[DataLoader[Tensor]]:
    short = RandomSampler(range(4))
    return [_shuffled(), DataLoader(Noisy(NUM_SAMPLES), batch_size=BATCH_SIZE, sampler=short)]


def _one_by_one() -> DataLoader[Tensor]:
    return DataLoader(Noisy(NUM_SAMPLES), batch_size=None, shuffle=True)


def _stream() -> DataLoader[Tensor]:
    return DataLoader(Stream(NUM_SAMPLES), batch_size=BATCH_SIZE)


@pytest.mark.slow_but("limit_train_batches", "max_epochs-max_steps")
@pytest.mark.parametrize(
    "settings",
    [
        {"every": 1},
        {"val_check_interval": 2},
        {"limit_train_batches": 3},
        {"max_epochs": -1, "max_steps": 12},
        {"scheduler": "plateau"},
        {"scheduler": "steps"},
        {"accumulate_grad_batches": 2, "limit_val_batches": 0, "every": 3},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_from_wherever_a_fit_was_saved_it_goes_on_the_same(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    _check(_shuffled, tmp_path, **settings)


@pytest.mark.parametrize("make", [_with_generator, _two, _one_by_one, _stream])
def test_any_ordinary_loader_goes_on_where_it_was(make: Make, tmp_path: Path) -> None:
    _check(make, tmp_path, max_epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("is_persistent", [False, True])
def test_what_workers_draw_goes_on(is_persistent: bool, tmp_path: Path) -> None:
    def make() -> DataLoader[Tensor]:
        return _shuffled(num_workers=2, persistent_workers=is_persistent)

    _check(make, tmp_path)


def _accumulate(rank: int, folder: Path) -> list[str]:
    """Fit on one of two ranks; the checkpoints from which it went on otherwise."""
    settings = {"devices": 2, "accumulate_grad_batches": 2, "limit_val_batches": 0, "max_epochs": 2}
    whole = _fit(_shuffled, callbacks=[saving := _SaveAlways(folder)], **settings)
    different = []
    for path, num_steps in saving.saved.items():
        resumed = _fit(_shuffled, seed=99, path=path, **settings)
        if resumed.steps != whole.steps[num_steps:]:
            different.append(path.name)
    return different


@pytest.mark.slow
def test_each_rank_keeps_its_accumulated_gradients(tmp_path: Path) -> None:
    assert run_trainers(_accumulate, tmp_path, tmp_path) == [[], []]


def test_data_that_cannot_go_on_are_named(tmp_path: Path) -> None:
    def make() -> DataLoader[Tensor]:
        return DataLoader(_StreamWithoutState(), batch_size=BATCH_SIZE)

    _fit(make, callbacks=[saving := _SaveAlways(tmp_path)], max_epochs=1)
    with pytest.warns(UserWarning, match=r"after 2 batches.*_StreamWithoutState is iterable"):
        _fit(make, path=list(saving.saved)[1], max_epochs=1)


def test_a_loader_that_is_none_is_named(tmp_path: Path) -> None:
    _fit(_Batches, callbacks=[saving := _SaveAlways(tmp_path)], max_epochs=1)
    with pytest.warns(UserWarning, match="after 2 batches.*_Batches iterates in a way of its own"):
        _fit(_Batches, path=list(saving.saved)[1], max_epochs=1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 4}, r"1 rank with batches of 2 samples \(2 a step\).*of 4 samples \(4 a"),
        ({"num_samples": 12}, "a data set with 10 samples, and this one has 12"),
    ],
)
def test_another_order_is_refused(sizes: dict[str, int], message: str, tmp_path: Path) -> None:
    _fit(_shuffled, callbacks=[saving := _SaveAlways(tmp_path)], max_epochs=1)
    data = torch.rand(sizes.get("num_samples", NUM_SAMPLES), 4)
    size = sizes.get("batch_size", BATCH_SIZE)
    with pytest.raises(ValueError, match=message):
        _fit(
            lambda: DataLoader(data, batch_size=size, shuffle=True),
            path=list(saving.saved)[1],
            max_epochs=1,
        )


def test_switched_off_nothing_is_kept(tmp_path: Path) -> None:
    saving = _SaveAlways(tmp_path)
    _fit(_shuffled, callbacks=[saving], max_epochs=1, strategy=_without())
    saved = torch.load(next(iter(saving.saved)), weights_only=True)
    assert "exact_resume" not in saved


def _without() -> Any:
    from lightning_gaudi.strategies import SingleHPUStrategy

    return SingleHPUStrategy(reliability="exact_resume=off")
