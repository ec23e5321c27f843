"""Steps that compile after the warm-up, by torch.compile and in lazy mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import CompilationAlarm, LateCompilationError
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> Iterator[None]:
    """Torch compiles a layer's code for so many shapes, whatever the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Model(LightningModule):
    """A compiled linear layer, which from some step on gets more than the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.compiled = torch.compile(self.layer, backend="hpu_backend", dynamic=False)
        self.grows_from = 1000

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs = batch["x"]
        if batch_idx >= self.grows_from:
            inputs = torch.cat([inputs, inputs[:, :1]], dim=1)
        return self.compiled(inputs).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.compiled(batch["x"].repeat(1, 7, 1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _batches(*shapes: tuple[int, int]) -> DataLoader[Any]:
    data = [{"x": torch.randn(rows, length, 4)} for rows, length in shapes]
    return DataLoader(data, batch_size=None)  # type: ignore[arg-type]


def _fit(
    alarm: CompilationAlarm, loader: DataLoader[Any], model: Model | None = None, **settings: Any
) -> list[str]:
    """What was warned of."""
    defaults = {"accelerator": "hpu", "devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    trainer = Trainer(**{**defaults, **QUIET, "callbacks": [alarm], **settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model or Model(), loader, _batches((2, 8)))
    return [str(each.message) for each in caught if "warm-up" in str(each.message)]


USUAL = [(2, 8)] * 6


def test_a_new_length_is_named_beside_the_usual_one_with_step_and_remedy() -> None:
    alarm = CompilationAlarm(num_warmup_steps=2)
    (said,) = _fit(alarm, _batches(*USUAL, (2, 13), (2, 8), (2, 13)))
    assert said.startswith("Step 7 compiled ")
    assert "after a warm-up of 2 steps. Its batch has x [2, 13, 4], where x [2, 8, 4] is" in said
    assert "lightning_gaudi.data.BucketDataLoader" in said
    assert "The device says: input " in said
    assert "[2, 13, 4] was [2, 8, 4]" in said
    assert alarm.num_late is not None
    assert alarm.num_late >= 1


def test_a_last_batch_that_is_not_full_is_to_be_dropped() -> None:
    (said,) = _fit(CompilationAlarm(2), _batches(*USUAL, (1, 8)))
    assert "Its batch has x [1, 8, 4], where x [2, 8, 4] is usual" in said
    assert "drop_last=True" in said


def test_what_varies_within_a_step_is_told_apart_from_the_batch() -> None:
    model = Model()
    model.grows_from = 4
    (said,) = _fit(CompilationAlarm(2), _batches(*USUAL), model)
    assert said.startswith("Step 5 compiled ")
    assert "Batches with its shapes came before" in said
    assert "[2, 9, 4] was [" in said


def test_warm_up_validation_and_the_first_log_step_may_compile() -> None:
    alarm = CompilationAlarm(2)
    loader = _batches((2, 5), (2, 8), *USUAL)
    assert not _fit(alarm, loader, val_check_interval=4, log_every_n_steps=5)
    assert alarm.num_late == 0


@pytest.mark.slow
@torch._dynamo.config.patch(recompile_limit=64)
def test_a_cause_is_told_once_and_very_many_are_not_told() -> None:
    alarm = CompilationAlarm(1)
    said = _fit(alarm, _batches((2, 8), *[(2, length) for length in range(9, 20)]))
    assert len(said) == 8
    assert said[-1].endswith("More are not told.")
    assert alarm.num_late is not None
    assert alarm.num_late >= 11


def test_it_can_end_the_fit() -> None:
    match = r"Step 7 compiled .*\[2, 13, 4\].*CompilationAlarm\(on_compilation=\"warn\"\)"
    with pytest.raises(LateCompilationError, match=match):
        _fit(CompilationAlarm(2, "error"), _batches(*USUAL, (2, 13)))


def test_a_device_that_tells_no_inputs_leaves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    known = vendor.metric
    monkeypatch.setattr(
        vendor, "metric", lambda name: None if name == "recompilation" else known(name)
    )
    (said,) = _fit(CompilationAlarm(2), _batches(*USUAL, (2, 13)))
    assert "x [2, 13, 4]" in said
    assert "The device says" not in said


def test_a_card_that_compiles_later_than_the_host_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    known, told = vendor.metric, []

    def metric(name: str) -> dict[str, Any] | None:
        if name != "graph_compilation":
            return known(name)
        told.append(known(name))
        return told[max(0, len(told) - 4)]  # asked twice a step

    monkeypatch.setattr(vendor, "metric", metric)
    (said,) = _fit(CompilationAlarm(4), _batches(*USUAL, (2, 13), *USUAL))
    assert said.startswith("Step 7 compiled ")
    assert "x [2, 13, 4], where x [2, 8, 4] is usual" in said


def test_another_device_compiles_nothing() -> None:
    alarm = CompilationAlarm(0)
    model = Model()
    model.compiled = model.layer
    assert not _fit(alarm, _batches(*USUAL), model, accelerator="cpu")
    assert alarm.num_late is None


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"num_warmup_steps": -1}, "num_warmup_steps must be 0 or more, but is -1"),
        ({"on_compilation": "raise"}, r"on_compilation='raise' is neither \"warn\" nor \"error\""),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CompilationAlarm(**settings)


class Plain(Model):
    """Not compiled: lazy mode does that."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = self.layer

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.compiled(batch["x"])


def _lazy(rank: int) -> tuple[list[str], int | None]:
    """Of two ranks, the second gets a batch of another length."""
    alarm = CompilationAlarm(3)
    odd = (2, 13) if rank else (2, 8)
    settings = {"devices": 2, "log_every_n_steps": 5, "use_distributed_sampler": False}
    said = _fit(alarm, _batches(*USUAL, odd, *USUAL), Plain(), **settings)
    return said, alarm.num_late


@pytest.mark.slow
def test_in_lazy_mode_each_rank_names_its_own_batch(tmp_path: Path) -> None:
    (first, num_first), (second, num_second) = run_trainers(
        _lazy, tmp_path, env={"PT_HPU_LAZY_MODE": "1"}
    )
    assert (first, num_first) == ([], 0)
    assert len(second) == 1
    assert second[0].startswith("Rank 1: step 7 compiled ")
    assert "x [2, 13, 4], where x [2, 8, 4] is usual" in second[0]
    assert num_second
