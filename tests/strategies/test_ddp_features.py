"""Lightning's features on one card and on two do what they do elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer
from tests.helpers.trainers import run_trainers

Facts = dict[str, Any]


class Module(ValidatedModule):
    """Everything that Lightning can call, with dropout."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__(dropout)
        self.facts: Facts = {}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, sync_dist=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        score = self.net(batch[0]).pow(2).mean() + self.global_rank
        self.log("val_loss", score, sync_dist=True)
        self.facts.setdefault("scores", []).append(score.item())
        self.facts["inference"] = torch.is_inference_mode_enabled()

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Data(pl.LightningDataModule):
    """Notes which process prepared it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def prepare_data(self) -> None:
        rank = self.trainer.global_rank
        with (self.folder / "prepared").open("a") as file:
            file.write(str(rank))

    def train_dataloader(self) -> Any:
        return batches(8)

    def val_dataloader(self) -> Any:
        return [batches(2), batches(4)]


def _trainer(num_ranks: int, **settings: Any) -> pl.Trainer:
    return hpu_trainer(devices=num_ranks, **settings)


def _callbacks(num_ranks: int, folder: Path) -> Facts:
    torch.manual_seed(1)
    early = EarlyStopping("val_loss", min_delta=100.0, patience=1)
    best = ModelCheckpoint(folder / "best", monitor="val_loss", save_last=True)
    lines: list[str] = []
    callbacks = [
        DeviceStatsMonitor(cpu_stats=False),
        LearningRateMonitor("epoch"),
        Timer(duration={"hours": 1}),
        GradientAccumulationScheduler({0: 1, 1: 2}),
        LambdaCallback(on_train_start=lambda *_: lines.append("start")),
        early,
        best,
    ]
    logger = CSVLogger(folder, version=0)
    model = Module()
    trainer = _trainer(
        num_ranks,
        max_epochs=5,
        callbacks=callbacks,
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=True,
    )
    trainer.fit(model, batches(8), batches(4))
    return {
        "stopped": early.stopped_epoch,
        "best": best.best_model_path,
        "score": float(best.best_model_score),
        "last": best.last_model_path,
        "lines": lines,
        "callback_metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
        "steps": trainer.global_step,
    }


def _data(num_ranks: int, folder: Path) -> Facts:
    model = Module()
    trainer = _trainer(num_ranks, max_epochs=1)
    trainer.fit(model, datamodule=Data(folder))
    facts = dict(model.facts)
    assert trainer.fit_loop._combined_loader is not None
    sampler: Any = trainer.fit_loop._combined_loader.flattened[0].sampler
    facts["sampler"] = type(sampler).__name__
    facts["num_batches"] = trainer.num_training_batches
    trainer = _trainer(num_ranks, max_epochs=1, use_distributed_sampler=False)
    trainer.fit(Module(), batches(8))
    facts["num_batches_without_sampler"] = trainer.num_training_batches
    combined = CombinedLoader({"a": batches(4), "b": batches(8)}, "max_size")

    class Combined(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch["a"] or batch["b"], batch_idx)

    trainer = _trainer(num_ranks, max_epochs=1)
    trainer.fit(Combined(), combined)
    facts["combined"] = trainer.global_step
    return facts


def _evaluation(num_ranks: int, folder: Path) -> Facts:
    facts: Facts = {}
    for mode in (True, False):
        model = Module(0.0)
        trainer = _trainer(num_ranks, inference_mode=mode)
        (metrics,) = trainer.validate(model, batches(4), verbose=False)
        facts[f"inference_mode={mode}"] = model.facts["inference"]
        facts["val_loss"], facts["scores"] = metrics["val_loss"], model.facts["scores"]
    (metrics,) = trainer.test(model, batches(4), verbose=False)
    facts["test_loss"] = metrics["test_loss"]
    facts["predictions"] = [str(p.device) for p in trainer.predict(model, batches(4))]
    return facts


def _switches(num_ranks: int, folder: Path) -> Facts:
    """Settings that change how a fit runs; the steps it then takes."""
    settings: dict[str, dict[str, Any]] = {
        "deterministic": {"deterministic": True},
        "benchmark": {"benchmark": True},
        "detect_anomaly": {"detect_anomaly": True},
        "overfit_batches": {"overfit_batches": 2},
        "fast_dev_run": {"fast_dev_run": 2},
        "limits": {"limit_train_batches": 3, "limit_val_batches": 1},
        "clipping": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        "swa": {"callbacks": [StochasticWeightAveraging(1e-3, swa_epoch_start=1)], "max_epochs": 3},
        "rich": {"callbacks": [RichProgressBar()], "enable_progress_bar": True},
    }
    facts: Facts = {}
    for name, chosen in settings.items():
        torch.manual_seed(1)
        model = Module()
        trainer = _trainer(num_ranks, **({"max_epochs": 1} | chosen))
        trainer.fit(model, batches(8), batches(4))
        facts[name] = trainer.global_step, [w.detach() for w in model.parameters()]
    torch.use_deterministic_algorithms(False)
    return facts


def _talk(num_ranks: int, folder: Path) -> Facts:
    class Talking(Module):
        def on_train_start(self) -> None:
            rank, strategy = self.global_rank, self.trainer.strategy
            number = torch.tensor(float(rank), device=self.device)
            self.facts |= {
                "gathered": self.all_gather(number.repeat(2)).cpu(),
                "gathered_dict": self.all_gather({"a": number})["a"].cpu(),
                "broadcast": strategy.broadcast({"from": rank}),
                "reduced": strategy.reduce(number.clone()).cpu(),
                "any": strategy.reduce_boolean_decision(rank == 0, all=False),
                "all": strategy.reduce_boolean_decision(rank == 0, all=True),
            }

    model = Talking()
    _trainer(num_ranks, max_steps=1).fit(model, batches(2))
    return model.facts


PARTS = (_callbacks, _data, _evaluation, _switches, _talk)


def _all(rank: int, folder: Path, num_ranks: int) -> dict[str, Facts]:
    found = {}
    for part in PARTS:
        (folder / part.__name__).mkdir(exist_ok=True)
        found[part.__name__] = part(num_ranks, folder / part.__name__)
    return found


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: Any) -> list[dict[str, Facts]]:
    folder, num = tmp_path_factory.mktemp("ranks"), request.param
    found = run_trainers(_all, folder, folder, num, num_ranks=num)
    for facts in found:
        facts["folder"] = folder
    return found


@pytest.mark.slow_but("1")
def test_callbacks_stop_and_save_at_the_same_step(ranks: list[dict[str, Facts]]) -> None:
    for facts in ranks:
        found = facts["_callbacks"]
        assert found["stopped"] == 1
        num_batches = 8 // len(ranks)
        assert found["steps"] == num_batches + num_batches // 2  # accumulated in the second epoch
        assert found == ranks[0]["_callbacks"]
        assert found["lines"] == ["start"]
        assert Path(found["best"]).is_file()
        assert Path(found["last"]).is_file()


def test_best_checkpoint_loads_on_the_cpu(ranks: list[dict[str, Facts]]) -> None:
    best = Path(ranks[0]["_callbacks"]["best"])
    model = Module.load_from_checkpoint(best, weights_only=True)
    saved = torch.load(best, weights_only=False)
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    for name, weight in model.state_dict().items():
        assert torch.equal(saved["state_dict"][name], weight)
    assert len(saved["hpu_rng_state"]) == len(ranks) or len(ranks) == 1


def test_monitors_write_figures_of_the_card(ranks: list[dict[str, Facts]]) -> None:
    metrics = ranks[0]["folder"] / "_callbacks/lightning_logs/version_0/metrics.csv"
    columns = metrics.read_text().splitlines()[0]
    for name in ("DeviceStatsMonitor.on_train_batch_start/InUse", "lr-AdamW", "loss_step"):
        assert name in columns


def test_data_is_prepared_once_and_sampled_by_rank(ranks: list[dict[str, Facts]]) -> None:
    prepared = ranks[0]["folder"] / "_data/prepared"
    assert prepared.read_text() == "0"
    for facts in ranks:
        found = facts["_data"]
        is_alone = len(ranks) == 1
        assert found["sampler"] == ("SequentialSampler" if is_alone else "DistributedSampler")
        assert found["num_batches"] == 8 // len(ranks)
        assert found["num_batches_without_sampler"] == 8
        assert found["combined"] == 8 // len(ranks)
        # Two loaders of 2 and 4 batches, and at most 2 of each for the sanity check.
        assert len(found["scores"]) == {1: 6 + 4, 2: 3 + 3}[len(ranks)]


def test_evaluation_averages_over_the_ranks(ranks: list[dict[str, Facts]]) -> None:
    scores = torch.tensor([facts["_evaluation"]["scores"] for facts in ranks])
    for facts in ranks:
        found = facts["_evaluation"]
        assert found["inference_mode=True"] is True
        assert found["inference_mode=False"] is False
        assert found["val_loss"] == pytest.approx(scores.mean().item(), abs=1e-6)
        assert found["test_loss"] > 0
        assert len(found["predictions"]) == 4 // len(ranks)


def test_settings_of_the_trainer_run_and_keep_ranks_equal(ranks: list[dict[str, Facts]]) -> None:
    num_batches = 8 // len(ranks)
    steps = dict.fromkeys(("deterministic", "benchmark", "detect_anomaly", "clipping"), num_batches)
    steps |= {"rich": num_batches, "overfit_batches": 2, "fast_dev_run": 2, "limits": 3}
    steps["swa"] = 3 * num_batches
    for facts in ranks:
        found = facts["_switches"]
        assert {name: steps for name, (steps, _) in found.items()} == steps
        for name, (_, weights) in found.items():
            for weight, first in zip(weights, ranks[0]["_switches"][name][1], strict=True):
                assert torch.equal(weight, first), name


def test_ranks_speak_with_each_other(ranks: list[dict[str, Facts]]) -> None:
    num_ranks = len(ranks)
    for facts in ranks:
        found = facts["_talk"]
        numbers = torch.arange(float(num_ranks)).squeeze(0)
        assert torch.equal(found["gathered"], torch.stack([numbers, numbers], -1))
        assert torch.equal(found["gathered_dict"], numbers)
        assert found["broadcast"] == {"from": 0}
        assert float(found["reduced"]) == (num_ranks - 1) / 2
        assert found["any"] is True
        assert found["all"] is (num_ranks == 1)
