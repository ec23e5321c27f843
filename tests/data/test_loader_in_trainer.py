"""A real Trainer leaves the loader alone, saves where it is, and goes on there."""

import contextlib
import itertools

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader, evaluation_loader
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

BOUNDARIES = [8, 16, 32]
LENGTHS = np.random.default_rng(0).integers(1, 33, size=41)
SAMPLES = [{"input_ids": [1] * int(length), "id": i} for i, length in enumerate(LENGTHS)]
# 10 batches an epoch.

EPOCHS = {"max_epochs": 3}
STEPS = {"max_epochs": -1, "max_steps": 26}


def _loader(shuffle=True, num_workers=0) -> BucketDataLoader:
    sampler = BucketBatchSampler(LENGTHS, BOUNDARIES, 4, shuffle=shuffle, seed=3)
    persistent = num_workers > 0
    return BucketDataLoader(
        SAMPLES, sampler, num_workers=num_workers, persistent_workers=persistent
    )


class Model(pl.LightningModule):
    """Remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []
        self.shapes: list[tuple[int, ...]] = []

    def training_step(self, batch, batch_idx):
        self.trained.append(batch["id"].tolist())
        self.shapes.append(tuple(batch["input_ids"].shape))
        return self.net(batch["id"].float()[:, None] / 100).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class EvaluatedModel(Model):
    """Remembers what it was evaluated on, too."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: list[int] = []

    def validation_step(self, batch, batch_idx):
        self.evaluated += batch["id"][batch["is_real"]].tolist()
        self.shapes.append(tuple(batch["input_ids"].shape))

    def predict_step(self, batch):
        return batch["id"][batch["is_real"]].cpu()


class Interruption(pl.Callback):
    """Saves a checkpoint in a hook, and ends the run there as a lost machine would."""

    def __init__(self, hook: str, step: int, path) -> None:
        self.hook, self.step, self.path = hook, step, path

    def _happens(self, trainer, hook: str) -> None:
        if hook == self.hook and trainer.global_step == self.step and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)
            raise InterruptedError

    def on_train_batch_end(self, trainer, *args):
        self._happens(trainer, "on_train_batch_end")

    def on_validation_end(self, trainer, *args):
        self._happens(trainer, "on_validation_end")

    def on_train_epoch_end(self, trainer, *args):
        self._happens(trainer, "on_train_epoch_end")


def _fit(ckpt_path=None, num_workers=0, validates=False, callbacks=(), **settings):
    """The model and the Trainer, after a run that may be interrupted."""
    model = EvaluatedModel() if validates else Model()
    trainer = pl.Trainer(
        **{**QUIET, "accelerator": "cpu", "devices": 1, **settings}, callbacks=list(callbacks)
    )
    validation = _loader(shuffle=False) if validates else None
    with contextlib.suppress(InterruptedError):
        trainer.fit(model, _loader(num_workers=num_workers), validation, ckpt_path=ckpt_path)
    return model, trainer


def _trained(*args, **settings) -> list[list[int]]:
    """The samples of each training step of a run."""
    return _fit(*args, **settings)[0].trained


CASES = [
    *(("on_train_batch_end", step, {}) for step in (3, 10, 14)),
    ("on_train_epoch_end", 20, {}),
    ("on_validation_end", 10, {"validates": True}),
    *(
        (hook, step, {"validates": True, "val_check_interval": 5})
        for hook, step in (("on_validation_end", 15), ("on_train_batch_end", 14))
    ),
    ("on_train_batch_end", 9, {"limit_train_batches": 7}),
    ("on_train_batch_end", 13, {"num_workers": 2}),
]


@pytest.mark.slow_but(
    "on_train_batch_end-9-settings7-epochs",
    "on_train_batch_end-14-settings2-epochs",
    "on_train_batch_end-10-settings1-steps",
    "on_train_batch_end-10-settings1-epochs",
    "on_train_batch_end-3-settings0-steps",
    "on_train_batch_end-9-settings7-steps",
    "on_train_batch_end-3-settings0-epochs",
)
@pytest.mark.parametrize("end", [EPOCHS, STEPS], ids=["epochs", "steps"])
@pytest.mark.parametrize(("hook", "step", "settings"), CASES)
def test_a_resumed_run_sees_the_batches_that_were_left(hook, step, settings, end, tmp_path):
    expected, path = _trained(**settings, **end), tmp_path / "last.ckpt"
    before = _trained(callbacks=[Interruption(hook, step, path)], **settings, **end)
    assert len(before) == step  # it was interrupted
    assert before + _trained(path, **settings, **end) == expected


@pytest.mark.slow_but("4-0", "14-0", "10-0")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_steps", [4, 10, 14])
def test_a_run_that_max_steps_ended_goes_on_within_the_epoch(num_steps, num_workers, tmp_path):
    first, trainer = _fit(max_epochs=-1, max_steps=num_steps, num_workers=num_workers)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    second = _trained(tmp_path / "end.ckpt", **STEPS, num_workers=num_workers)
    assert first.trained + second == _trained(**STEPS)


def test_a_run_is_resumed_twice(tmp_path):
    found, path = [], None
    for index, num_steps in enumerate((4, 17, 26)):
        model, trainer = _fit(path, max_epochs=-1, max_steps=num_steps)
        path = tmp_path / f"{index}.ckpt"
        trainer.save_checkpoint(path)
        found += model.trained
    assert found == _trained(**STEPS)


@pytest.mark.xfail(strict=True, reason="Lightning tells no loader of limit_train_batches")
def test_a_run_is_resumed_where_limit_train_batches_ended_an_epoch(tmp_path):
    settings, path = {**EPOCHS, "limit_train_batches": 7}, tmp_path / "last.ckpt"
    interruption = Interruption("on_train_batch_end", 7, path)
    before = _trained(callbacks=[interruption], **settings)
    assert before + _trained(path, **settings) == _trained(**settings)


def test_a_loader_is_used_for_several_runs():
    loader, found = _loader(), []
    for _ in range(2):
        model = Model()
        pl.Trainer(**QUIET, accelerator="cpu", devices=1, max_epochs=2).fit(model, loader)
        found.append(model.trained)
    assert found[0] == found[1]


def test_overfit_batches_is_refused():
    refused = pytest.raises(TypeError, match=r"can't inject a \(distributed\) sampler")
    with refused, pytest.warns(UserWarning, match="You requested to overfit"):
        _fit(**EPOCHS, overfit_batches=2)


def _run_everything(rank: int, accelerator: str, checkpoint) -> dict:
    """As users write it: no rank is named, and the Trainer has its defaults."""
    settings = {**QUIET, "accelerator": accelerator, "devices": 2, "strategy": "ddp"}
    found = {}
    for name, ckpt_path, num_steps in (
        ("whole", None, 13),
        ("first", None, 7),
        ("second", checkpoint, 13),
    ):
        model = Model()
        trainer = pl.Trainer(**settings, max_epochs=-1, max_steps=num_steps)
        trainer.fit(model, _loader(num_workers=int(name == "second")), ckpt_path=ckpt_path)
        found[name], found[f"{name} shapes"] = model.trained, model.shapes
        if name == "first":
            trainer.save_checkpoint(checkpoint)
    trainer = pl.Trainer(**settings)
    for name, loader in (("buckets", _loader(shuffle=False)), ("plain", _plain_loader())):
        model = EvaluatedModel()
        trainer.validate(model, loader, verbose=False)
        found[name], found[f"{name} shapes"] = model.evaluated, model.shapes
    found["predicted"] = torch.cat(
        trainer.predict(EvaluatedModel(), _loader(shuffle=False))
    ).tolist()
    return found


def _plain_loader() -> BucketDataLoader:
    samples = [{"input_ids": torch.ones(3), "id": index} for index in range(41)]
    return evaluation_loader(samples, 4)


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", ["hpu", "cpu"])
@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning")
def test_two_ranks_share_the_samples_and_resume(accelerator, tmp_path):
    ranks = run_trainers(_run_everything, tmp_path, accelerator, tmp_path / "mid.ckpt")
    for rank in ranks:
        assert rank["first"] + rank["second"] == rank["whole"]
    # 41 samples are 5 batches of 4 for each of 2 ranks.
    for epoch in (slice(0, 5), slice(5, 10)):
        seen = [index for rank in ranks for batch in rank["whole"][epoch] for index in batch]
        assert len(seen) == len(set(seen)) == 40
    for name in ("whole shapes", "buckets shapes", "plain shapes"):
        assert ranks[0][name] == ranks[1][name]
    for name in ("buckets", "plain", "predicted"):
        assert sorted(itertools.chain(*(rank[name] for rank in ranks))) == list(range(41))
    assert len(ranks[0]["buckets shapes"]) == 6
