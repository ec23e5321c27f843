"""What hooks and callbacks change in a fit is changed in the one that resumes, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelPruning,
)
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi.strategies import (
    HPUDeepSpeedStrategy,
    HPUFSDPStrategy,
    HPUModelParallelStrategy,
)
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.filterwarnings("default")

NUM_BATCHES, NUM_EPOCHS = 4, 4


def _data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(NUM_BATCHES * 2, size, generator=generator) for size in (4, 1))
    return DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)


class Plain(pl.LightningModule):
    """A body, a head and dropout; `weight` scales a second loss."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
        self.head = nn.Linear(4, 1)
        self.weight = 0.0
        self.losses: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        y = self.head(self.backbone(batch[0]))
        loss: Tensor = (y - batch[1]).square().mean() + self.weight * y.abs().mean()
        self.losses.append(float(loss.detach()).hex())
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.head(self.backbone(batch[0])).mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class FreezesAtFirst(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.backbone.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)


class SetsAWeight(Plain):
    def on_train_epoch_start(self) -> None:
        self.weight = 0.1 * self.current_epoch


class AddsToAWeight(Plain):
    def on_train_epoch_start(self) -> None:
        self.weight += 0.1


class MultipliesRates(Plain):
    def on_train_epoch_start(self) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] *= 0.5


class ChangesWeights(Plain):
    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.head.weight.mul_(0.5)
            self.head.bias.data.add_(torch.rand(1).item())
            self.backbone[1].running_mean.zero_()


class DrawsNumbers(Plain):
    def on_train_epoch_start(self) -> None:
        self.weight = torch.rand(1).item() + torch.rand(1, device=self.device).item()


class ChangesDropout(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 6:
            self.backbone[2].p = 0.5


class StopsStatistics(Plain):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone[1].eval()


class AccumulatesMore(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 4:
            self.trainer.accumulate_grad_batches = 2


class ByHand(Plain):
    """Steps after each third batch, across the ends of epochs."""

    num_batches = 3

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.num_seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, batch_idx))
        self.num_seen += 1
        if self.num_seen % self.num_batches == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class TwoByHand(ByHand):
    """The head steps each time, the rest each third; nothing is zeroed before the next step."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        head, rest = self.optimizers()
        head.zero_grad()
        self.manual_backward(Plain.training_step(self, batch, batch_idx))
        head.step()
        self.num_seen += 1
        if self.num_seen % 3 == 0:
            rest.step()
            rest.zero_grad(set_to_none=self.num_seen % 2 == 0)

    def configure_optimizers(self) -> Any:
        parts = self.head, self.backbone
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]


class Counts(pl.Callback):
    """Of the user's own, without a state."""

    def __init__(self) -> None:
        self.count = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.count += 1
        pl_module.weight = 0.01 * self.count


class CountsEpochs(pl.Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.count += 1
        pl_module.weight = 0.1 * self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def _finetuning() -> BackboneFinetuning:
    return BackboneFinetuning(1, lambda epoch: 1.0, 0.5, should_align=False)


def _pruning() -> ModelPruning:
    return ModelPruning("l1_unstructured", parameter_names=["weight"], amount=0.3)


def _scheduler() -> GradientAccumulationScheduler:
    return GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})


def _lambda() -> LambdaCallback:
    def start(trainer: Any, module: Any) -> None:
        module.weight = 0.3 if trainer.current_epoch > 1 else 0.0

    return LambdaCallback(on_train_epoch_start=start)


class _SaveAlways(pl.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: dict[Path, int] = {}

    def _save(self, trainer: pl.Trainer, module: Any) -> None:
        path = self.folder / f"{len(self.saved)}.ckpt"
        trainer.save_checkpoint(path)
        self.saved[path] = len(module.losses)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        self._save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._save(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {}


def _fit(
    make: Callable[[], Plain], callbacks: list[Any], path: Path | None = None, **kw: Any
) -> Plain:
    torch.manual_seed(1 if path is None else 99)
    module = make()
    settings = {"accelerator": "hpu", "devices": 1, "max_epochs": NUM_EPOCHS, **QUIET, **kw}
    trainer = pl.Trainer(callbacks=callbacks, **settings)
    trainer.fit(module, _data(), ckpt_path=path)
    return module


def _different(
    make: Callable[[], Plain], callbacks: list[Callable[[], Any]], folder: Path, **kw: Any
) -> list[str]:
    """From which checkpoints a fit went on otherwise."""
    saving = _SaveAlways(folder)
    whole = _fit(make, [each() for each in callbacks] + [saving], **kw)
    assert len(saving.saved) == NUM_EPOCHS * (NUM_BATCHES // kw.get("devices", 1) + 1)
    different = []
    for path, num_steps in list(saving.saved.items())[::3]:
        resumed = _fit(make, [each() for each in callbacks], path, **kw)
        # Buffers of other ranks than the first are in no checkpoint; DDP sends them its own.
        named = [dict(each.state_dict()) for each in (whole, resumed)]
        names = named[0] if "devices" not in kw else dict(whole.named_parameters())
        others = [name for name in names if not torch.equal(named[0][name], named[1][name])]
        if others or resumed.losses != whole.losses[num_steps:]:
            different.append(f"{path.name}: {others}")
    return different


@pytest.mark.slow_but("FreezesAtFirst")
@pytest.mark.parametrize(
    "make",
    [
        *(Plain, FreezesAtFirst, SetsAWeight, AddsToAWeight, MultipliesRates, ChangesWeights),
        *(DrawsNumbers, ChangesDropout, StopsStatistics, AccumulatesMore, ByHand, TwoByHand),
    ],
)
def test_what_a_module_changes(make: Callable[[], Plain], tmp_path: Path) -> None:
    assert _different(make, [], tmp_path) == []


@pytest.mark.slow_but("_lambda")
@pytest.mark.parametrize("make", [Counts, CountsEpochs, _finetuning, _pruning, _scheduler, _lambda])
def test_what_a_callback_changes(make: Callable[[], Any], tmp_path: Path) -> None:
    assert _different(Plain, [make], tmp_path) == []


@pytest.mark.slow_but("3-TwoByHand", "6-TwoByHand")
@pytest.mark.parametrize("make", [SetsAWeight, TwoByHand])
@pytest.mark.parametrize("num_steps", [3, 4, 6])
def test_what_is_saved_by_hand_after_a_fit(
    make: Callable[[], Plain], num_steps: int, tmp_path: Path
) -> None:
    whole = _fit(make, [])
    for is_validated in (False, True):
        torch.manual_seed(1)
        part = make()
        trainer = pl.Trainer(accelerator="hpu", devices=1, max_steps=num_steps, **QUIET)
        trainer.fit(part, _data())
        if is_validated:
            trainer.test(part, _data())
        torch.rand(3)
        trainer.save_checkpoint(path := tmp_path / f"{is_validated}.ckpt")
        resumed = _fit(make, [], path)
        assert part.losses + resumed.losses == whole.losses


@pytest.mark.parametrize("num_steps", [6, 8])
def test_what_is_pruned_at_the_end_of_an_epoch_that_was_cut_short(
    num_steps: int, tmp_path: Path
) -> None:
    whole = _fit(Plain, [_pruning()])
    torch.manual_seed(1)
    module = Plain()
    settings: Any = {"accelerator": "hpu", "devices": 1, "max_steps": num_steps, **QUIET}
    trainer = pl.Trainer(callbacks=[_pruning()], **settings)
    trainer.fit(module, _data())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.save_checkpoint(tmp_path / "c.ckpt")
    said = [each for each in caught if "its on_train_epoch_end has changed" in str(each.message)]
    resumed = _fit(Plain, [_pruning()], tmp_path / "c.ckpt")
    assert (resumed.losses == whole.losses[num_steps:]) != bool(said)
    assert bool(said) == (num_steps == 6)


def _all_of(rank: int, folder: Path) -> list[str]:
    found: list[str] = []
    for make, callbacks in (
        (FreezesAtFirst, []),
        (ByHand, []),
        (TwoByHand, []),
        (Plain, [_pruning, _finetuning]),
    ):
        found += _different(make, callbacks, folder / make.__name__, devices=2)
    return found


@pytest.mark.slow
def test_what_is_changed_on_two_ranks(tmp_path: Path) -> None:
    assert run_trainers(_all_of, tmp_path, tmp_path) == [[], []]


class Sharded(Plain):
    """Changes a layer and a weight that each strategy has within its shards."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone[1] = nn.LayerNorm(4)

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, HPUModelParallelStrategy):
            for each in (self.backbone, self.head):
                if not isinstance(each, FSDPModule):
                    fully_shard(each, mesh=self.device_mesh["data_parallel"])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 3:
            self.backbone[2].p = 0.5
            self.weight = 0.3


SHARDED: dict[str, Any] = {
    "fsdp": lambda: HPUFSDPStrategy(auto_wrap_policy={nn.Linear, nn.Sequential}),
    "fsdp2": lambda: HPUModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    "stage 2": lambda: HPUDeepSpeedStrategy(stage=2),
    "stage 3": lambda: HPUDeepSpeedStrategy(stage=3),
}


def _all_sharded(rank: int, folder: Path) -> list[Any]:
    found = []
    for name, strategy in SHARDED.items():
        saving = _SaveAlways(folder / name)
        kw = {"devices": 2, "max_epochs": NUM_EPOCHS}
        whole = _fit(Sharded, [saving], strategy=strategy(), **kw)
        for path, num_steps in [*saving.saved.items()][4:9:2]:
            resumed = _fit(Sharded, [], path, strategy=strategy(), **kw)
            found.append((name, num_steps, resumed.losses == whole.losses[num_steps:]))
    return found


@pytest.mark.slow
def test_what_is_changed_of_shards(tmp_path: Path) -> None:
    for found in run_trainers(_all_sharded, tmp_path, tmp_path):
        assert len(found) == 3 * len(SHARDED)
        assert [each for each in found if not each[-1]] == []


class CountedData(pl.LightningDataModule):
    """Makes its samples larger with each batch that a hook of its own sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.is_new = 1.0, True

    def train_dataloader(self) -> Any:
        return _data()

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.scale, self.is_new = self.scale * 1.1, False
        return [batch[0] * self.scale, batch[1]]


def test_what_a_data_module_changes(tmp_path: Path) -> None:
    def fit(path: Path | None = None, *callbacks: Any) -> tuple[list[str], CountedData]:
        torch.manual_seed(1 if path is None else 99)
        module, data = Plain(), CountedData()
        settings: Any = {"accelerator": "hpu", "devices": 1, "max_epochs": 2, **QUIET}
        pl.Trainer(callbacks=[*callbacks], **settings).fit(module, data, ckpt_path=path)
        return module.losses, data

    saving = _SaveAlways(tmp_path)
    whole, data = fit(None, saving)
    for path, num_steps in saving.saved.items():
        resumed, again = fit(path)
        assert resumed == whole[num_steps:]
        if resumed:
            assert (again.scale, again.is_new) == (data.scale, data.is_new)


class SavesInItsStep(ByHand):
    num_batches = 1

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "c.ckpt")


class ChangesWeightsAtTheEnd(Plain):
    def on_train_batch_end(self, *args: Any) -> None:
        if self.global_step == 3:
            with torch.no_grad():
                self.head.weight.mul_(0.5)


class ChangesAWeightAtTheEnd(Plain):
    def on_train_epoch_end(self) -> None:
        self.weight += 0.1


@pytest.mark.slow_but(
    "ChangesAWeightAtTheEnd-saved in on_train_epoch_end, and hooks.*changed module//weight:"
)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (SavesInItsStep, "saved within step 1, after the optimizer's step.*takes the batch.*again"),
        (ChangesWeightsAtTheEnd, r"saved in on_train_batch_end, and hooks.*changed head\.weight:"),
        (ChangesAWeightAtTheEnd, "saved in on_train_epoch_end, and hooks.*changed module//weight:"),
    ],
)
def test_what_cannot_go_on_is_named(make: type[Plain], message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        _fit(make, [_SaveAlways(tmp_path)], default_root_dir=tmp_path)
    assert len([each for each in caught if "checkpoint" in str(each.message)]) == 1


def test_changes_of_what_is_gone_are_named(tmp_path: Path) -> None:
    _fit(Plain, [Counts(), _SaveAlways(tmp_path)])
    with pytest.warns(UserWarning, match=r"this fit has not: callback/Counts-0/count\. Resume"):
        _fit(Plain, [], tmp_path / "2.ckpt")


def test_a_checkpoint_sets_nothing_else(tmp_path: Path) -> None:
    _fit(Plain, [saving := _SaveAlways(tmp_path)])
    path = list(saving.saved)[2]
    saved = torch.load(path, weights_only=True)
    wrong = {
        **{"trainer//max_epochs": 1, "trainer//default_root_dir": 1, "module//weight": "/etc"},
        **{"module//_device": None, "module//forward": None, "module/head/forward": 1},
        **{"callback/_SaveAlways-0/folder": 1, "parameter/head.weight/data": 0, "": 1},
        **{"module/head/bias": None, "module/head/weight": 1.0, "module//losses": 2},
    }
    saved["exact_resume"]["ranks"][0]["changed"] = wrong
    torch.save(saved, tmp_path / "other.ckpt")
    with pytest.warns(UserWarning, match="this fit has not") as caught:
        _fit(Plain, [], tmp_path / "other.ckpt")
    (said,) = [str(each.message) for each in caught if "this fit has not" in str(each.message)]
    assert all(key in said for key in wrong)
