"""`HPUProfiler` is a `PyTorchProfiler`, and its events are where that one's are."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PassThroughProfiler,
    SimpleProfiler,
)
from lightning.pytorch.profilers.pytorch import RegisterRecordFunction
from torch.autograd.profiler_util import EventList

from lightning_gaudi import HPUProfiler
from tests.helpers.profiles import QUIET_RESULTS, event_counts, fit, read_trace
from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer

STAGES = ("fit", "validate", "test", "predict")
STEPS = {"fit": "training", "validate": "validation"}


def run_stage(trainer: pl.Trainer, stage: str, module: pl.LightningModule) -> None:
    loaders = [batches(8), batches(3)] if stage == "fit" else [batches(8)]
    getattr(trainer, stage)(module, *loaders, **QUIET_RESULTS.get(stage, {}))


def step_counts(profiler: Any) -> dict[str, int]:
    """Kind of step -> number of its events."""
    counts, prefix = event_counts(profiler), "[pl][profile][Strategy]SingleHPUStrategy."
    names = [name.removeprefix(prefix) for name in counts if name.startswith(prefix)]
    return {name: counts[prefix + name] for name in names if name.endswith("_step")}


@pytest.mark.parametrize(
    ("package", "ours"),
    [
        ("lightning.pytorch", "lightning_gaudi"),
        ("pytorch_lightning", "lightning_gaudi.pytorch_lightning"),
    ],
)
def test_it_is_a_pytorch_profiler_of_its_family(package: str, ours: str) -> None:
    theirs = importlib.import_module(f"{package}.profilers")
    profiler = importlib.import_module(ours).HPUProfiler()
    assert isinstance(profiler, theirs.PyTorchProfiler)
    assert theirs.PyTorchProfiler.__module__ == f"{package}.profilers.pytorch"


@pytest.fixture(scope="module", params=["default", None], ids=["default", "everything"])
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, HPUProfiler]:
    """One profiler through all stages, and what it was after each."""
    folder = tmp_path_factory.mktemp("stages")
    profiler = HPUProfiler(folder, "mine", schedule=request.param)
    trainer = hpu_trainer(profiler=profiler, max_epochs=1, num_sanity_val_steps=0)
    after, module = {}, ValidatedModule()
    for stage in STAGES:
        run_stage(trainer, stage, module)
        after[stage] = copy.deepcopy(profiler)
        assert profiler.profiler is None
        assert not torch.autograd._profiler_enabled()
    return after


@pytest.mark.parametrize("stage", STAGES)
def test_events_are_those_of_the_last_stage(stages: dict[str, HPUProfiler], stage: str) -> None:
    profiler = stages[stage]
    assert isinstance(profiler.function_events, EventList)
    num_recorded = 8 if profiler._asked_schedule is None else 3
    expected = {f"{STEPS.get(stage, stage)}_step": num_recorded}
    if stage == "fit" and profiler._asked_schedule is None:
        expected["validation_step"] = 3
    assert step_counts(profiler) == expected
    assert event_counts(profiler)["aten::addmm"] == 2 * sum(expected.values())
    # torch counts the steps of all numbers under one name
    assert event_counts(profiler)["ProfilerStep*"] == num_recorded


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_its_report_and_its_trace(
    stages: dict[str, HPUProfiler], stage: str
) -> None:
    folder = Path(str(stages[stage].dirpath))
    last = 7 if stages[stage]._asked_schedule is None else 4
    assert (folder / f"{stage}-mine-rank0.txt").read_text().startswith("HPU profile of 8 ")
    events = read_trace(folder / f"{stage}-mine-rank0.{last}.pt.trace.json")
    durations = [event["dur"] for event in events if event.get("cat") == "cpu_op"]
    assert durations
    assert min(durations) >= 0
    assert len(list(folder.iterdir())) == 2 * len(STAGES)


def test_events_can_be_averaged_sorted_and_shown_as_a_table(
    stages: dict[str, HPUProfiler],
) -> None:
    events = stages["fit"].function_events
    assert events is not None
    averages = events.key_averages()
    assert {event.key for event in averages} == set(event_counts(stages["fit"]))
    assert "aten::addmm" in averages.table(sort_by="cpu_time_total", row_limit=-1)


@pytest.mark.slow
def test_a_profiler_with_events_can_be_sent_and_used_again(tmp_path: Path) -> None:
    profiler = HPUProfiler(tmp_path)
    for _ in range(2):
        fit(tmp_path, profiler)
        assert step_counts(profiler) == {"training_step": 3}
        gc.collect()  # the model, which the profiler must not need
        profiler = pickle.loads(pickle.dumps(profiler))


def test_torchs_profiler_is_there_while_a_stage_runs(tmp_path: Path) -> None:
    class Looks(pl.Callback):
        seen: list[Any] = []  # noqa: RUF012

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            self.seen.append(trainer.profiler.profiler)

    fit(tmp_path, HPUProfiler(), callbacks=[Looks()])
    assert {type(profiler) for profiler in Looks.seen} == {torch.profiler.profile}


def test_two_callbacks_of_one_class_have_events_of_their_own(tmp_path: Path) -> None:
    """And a stage that validates after its only step has them, too."""

    class Logs(ValidatedModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss)
            return loss

    profiler = HPUProfiler(tmp_path, filename="mine")
    callbacks = [EarlyStopping("val_loss"), EarlyStopping("train_loss")]
    trainer = hpu_trainer(profiler=profiler, fast_dev_run=1, callbacks=callbacks)
    trainer.fit(Logs(), batches(1), batches(1))
    for name in ("val_loss", "train_loss"):
        state = f"EarlyStopping{{'monitor': '{name}', 'mode': 'min'}}"
        key = f"[pl][profile][Callback]{state}.on_validation_start"
        assert event_counts(profiler)[key] == 1
    assert profiler._output_file is None
    trainer.fit(Logs(), batches(1), batches(1))  # has nothing left to do
    assert trainer.state.finished
    assert profiler.function_events is None
    assert profiler.summary() == "HPU profile: no training step was run.\n"


def test_outside_a_trainer_everything_is_recorded_until_it_is_described(tmp_path: Path) -> None:
    profiler = HPUProfiler(tmp_path, filename="mine", schedule=None)
    with profiler.profile("outer"):
        ones = torch.ones(42)
        with profiler.profile("inner"):
            ones.exp()
    profiler.describe()
    ranges = {"[pl][profile]outer", "[pl][profile]inner"}
    operators = {"aten::ones", "aten::empty", "aten::fill_", "aten::exp"}
    assert set(event_counts(profiler)) == ranges | operators
    assert "Trace of what ran: " in (tmp_path / "mine-rank0.txt").read_text()
    assert read_trace(tmp_path / "mine-rank0.pt.trace.json")

    profiler.start("unfinished")
    torch.zeros(2)
    profiler.describe()
    assert event_counts(profiler)["aten::zeros"] == 1
    assert "aten::ones" not in event_counts(profiler)
    assert not torch.autograd._profiler_enabled()
    assert copy.deepcopy(profiler)


def test_outside_a_trainer_the_default_records_nothing_and_says_so(tmp_path: Path) -> None:
    profiler = HPUProfiler(tmp_path)
    with profiler.profile("outer"):
        torch.ones(42)
    assert "Outside a Trainer, only HPUProfiler(schedule=None) records." in profiler.summary()
    assert profiler.function_events is None
    assert not list(tmp_path.iterdir())


def test_lightnings_module_ranges_are_seen_outside_a_trainer(tmp_path: Path) -> None:
    model = ValidatedModule()
    profiler = HPUProfiler(tmp_path, export_to_chrome=False, schedule=None, on_trace_ready=None)
    with profiler.profile("a"), RegisterRecordFunction(model):
        model.net(torch.ones(1, 8))
    profiler.describe()
    assert event_counts(profiler)["[pl][module]torch.nn.modules.linear.Linear: net.3"] == 1
    assert not list(tmp_path.iterdir())


def test_what_ran_before_a_stage_is_not_in_it(tmp_path: Path) -> None:
    profiler = HPUProfiler(tmp_path, schedule=None)
    with profiler.profile("[Callback]of the Trainer's, before it calls setup"):
        assert profiler.profiler is None
    with profiler.profile("before"):
        torch.ones(2)
    fit(tmp_path, profiler, fast_dev_run=1)
    assert "[pl][profile]before" not in event_counts(profiler)
    assert [path.name for path in tmp_path.iterdir()] == ["fit-rank0.0.pt.trace.json"]


def test_arguments_of_torchs_table_give_torchs_table(tmp_path: Path) -> None:
    table_kwargs = {"header": "as torch has it", "max_name_column_width": 20}
    profiler = HPUProfiler(tmp_path, row_limit=3, sort_by_key="count", table_kwargs=table_kwargs)
    summary = fit(tmp_path, profiler).profiler.summary()
    table = summary.split("Operators in steps 2 to 4, by count\n")[1]
    assert "as torch has it" in table
    assert "# of Calls" in table
    last = [line.split()[-1] for line in table.splitlines() if line.strip()]
    counts = [int(cell) for cell in last if cell.isdigit()]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("kind", [SimpleProfiler, AdvancedProfiler])
def test_lightnings_own_profilers_report_each_stage(kind: Any, tmp_path: Path) -> None:
    profiler = kind(dirpath=tmp_path, filename="mine")
    trainer = hpu_trainer(profiler=profiler, max_epochs=1)
    module = ValidatedModule()
    for stage in STAGES:
        run_stage(trainer, stage, module)
        assert (tmp_path / f"{stage}-mine.txt").stat().st_size > 0
    assert isinstance(hpu_trainer().profiler, PassThroughProfiler)
