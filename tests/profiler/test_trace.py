"""The traces as files: which steps are in them, and what becomes of them where they fail."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_gaudi import HPUProfiler
from tests.helpers.profiles import NUM_STEPS, ReadingModule, fit, ranges, read_trace
from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> pl.Trainer:
    """After a fit with `profiler="hpu"`."""
    return fit(tmp_path_factory.mktemp("fit"))


def test_the_trace_shows_the_steps_of_the_schedule(trainer: pl.Trainer) -> None:
    (trace,) = Path(trainer.default_root_dir).iterdir()
    assert trace.name == "fit-rank0.4.pt.trace.json"
    events = read_trace(trace)
    own = ranges(events, "[pl][profile]my own range")
    batch = ranges(events, "[pl][profile]run_training_batch")
    fetch = ranges(events, "[pl][profile][_TrainingEpochLoop].train_dataloader_next")
    assert len(own) == len(batch) == len(fetch) == 3
    for index, number in enumerate((2, 3, 4)):
        ((start, end),) = ranges(events, f"ProfilerStep#{number}")
        inside = (fetch[index], batch[index], own[index])
        assert all(start <= left and right <= end for left, right in inside)
        assert fetch[index][1] <= batch[index][0] <= own[index][0]
    assert not ranges(events, "ProfilerStep#1")
    assert not ranges(events, "ProfilerStep#5")
    assert json.loads(trace.read_text())["Framework"] == "pytorch-lightning"
    summary = trainer.profiler.summary()
    assert f"Trace of steps 2 to 4: {trace} (open it at https://ui.perfetto.dev)" in summary
    assert "The trace shows the host only: the device reported nothing to torch." in summary
    assert "\nmy own range " in summary
    assert "run_training_batch" not in summary


def test_lines_are_short_and_aligned(trainer: pl.Trainer) -> None:
    lines = trainer.profiler.summary().splitlines()
    operators = lines.index("Operators in steps 2 to 4, by self_cpu_time_total")
    assert len({len(line) for line in lines[1:7]}) == 1
    assert len({len(line) for line in lines[operators + 1 :]}) == 1
    assert len(lines[operators + 2 :]) == 20  # as in Lightning
    assert max(len(line) for line in lines[operators:]) <= 100


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup:UserWarning")
def test_every_cycle_of_a_schedule_has_its_file(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=0, active=1, repeat=2)
    fit(tmp_path, HPUProfiler(tmp_path / "new" / "traces", "mine", schedule=schedule))
    traces = tmp_path / "new" / "traces"
    assert sorted(path.name for path in traces.iterdir()) == [
        "fit-mine-rank0.1.pt.trace.json",
        "fit-mine-rank0.3.pt.trace.json",
        "fit-mine-rank0.txt",
    ]
    report = (traces / "fit-mine-rank0.txt").read_text()
    assert "Trace of step 1: " in report
    assert "Trace of step 3: " in report


def test_a_short_run_is_recorded_whole(tmp_path: Path) -> None:
    profiler = HPUProfiler(tmp_path, record_module_names=False)
    trainer = hpu_trainer(profiler=profiler, fast_dev_run=2)
    trainer.fit(ValidatedModule(), batches(2), batches(2))
    events = read_trace(tmp_path / "fit-rank0.1.pt.trace.json")
    batch = ranges(events, "[pl][profile]run_training_batch")
    (step_0,) = ranges(events, "ProfilerStep#0")
    (step_1,) = ranges(events, "ProfilerStep#1")
    for (start, end), (left, right) in zip((step_0, step_1), batch, strict=True):
        assert start <= left
        assert right <= end
    # What comes after the steps is in the trace, and in none of them.
    validation = ranges(events, "[pl][profile][Strategy]SingleHPUStrategy.validation_step")
    assert len(validation) == 2
    assert all(step_1[1] < start for start, _ in validation)
    assert not ranges(events, "ProfilerStep#2")
    summary = profiler.summary()
    assert summary.startswith("HPU profile of 2 training steps")
    assert "Operators in steps 0 to 1 and what ran around them, by " in summary


def test_a_schedule_that_records_nothing_is_said(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=20, warmup=1, active=1)
    summary = fit(tmp_path, HPUProfiler(schedule=schedule)).profiler.summary()
    assert "No trace: the schedule recorded none of these steps." in summary
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_the_trace_not_the_fit(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    profiler = HPUProfiler(tmp_path / "file" / "traces", filename="mine")
    with pytest.warns(RuntimeWarning) as raised:
        trainer = fit(tmp_path, profiler)
    assert trainer.global_step == NUM_STEPS
    texts = [str(warning.message) for warning in raised]
    reason = (
        f"Could not save {tmp_path}/file/traces/fit-mine-rank0.4.pt.trace.json: Not a directory"
    )
    assert any("rank 0 goes on without its trace of steps 2 to 4. " + reason in t for t in texts)
    assert any("cannot write its summary to dirpath=" in text for text in texts)
    assert f"No trace of steps 2 to 4: {reason}" in profiler.summary()


@pytest.fixture
def _full_disk() -> Iterator[None]:
    """A limit on the size of files stands for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_full_disk")
def test_a_full_disk_costs_the_trace_not_the_fit(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="goes on without its trace"):
        trainer = fit(tmp_path)
    assert trainer.global_step == NUM_STEPS
    summary = trainer.profiler.summary()
    assert summary.startswith("HPU profile of 8 training steps")
    assert "No trace of steps 2 to 4: Could not export the trace to " in summary
    assert "it was cut short. Set TMPDIR to a folder with more space." in summary
    assert not list(tmp_path.iterdir())


def test_a_failed_fit_leaves_its_trace_and_no_running_profiler(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as asked"):
        fit(tmp_path, module=ReadingModule(fails_at=4))
    assert not torch.autograd._profiler_enabled()
    (trace,) = tmp_path.iterdir()
    assert trace.name == "fit-rank0.3.pt.trace.json"
    assert len(ranges(read_trace(trace), "[pl][profile]run_training_batch")) >= 2
    assert "Trace of steps 2 to 4" in fit(tmp_path).profiler.summary()


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_failed_evaluation_leaves_its_trace_and_no_running_profiler(
    stage: str, tmp_path: Path
) -> None:
    module = ValidatedModule()
    step = {"validate": "validation"}.get(stage, stage) + "_step"
    setattr(module, step, lambda batch, batch_idx: [0, 1][2 * batch_idx])
    trainer = hpu_trainer(profiler="hpu", default_root_dir=tmp_path)
    with pytest.raises(IndexError):
        getattr(trainer, stage)(module, batches(4))
    assert not torch.autograd._profiler_enabled()
    assert [path.name for path in tmp_path.iterdir()] == [f"{stage}-rank0.0.pt.trace.json"]


def test_on_trace_ready_takes_the_place_of_the_file(tmp_path: Path) -> None:
    seen: list[Any] = []
    fit(tmp_path, HPUProfiler(on_trace_ready=seen.append))
    assert [type(profile) for profile in seen] == [torch.profiler.profile]
    assert not list(tmp_path.iterdir())
    fit(tmp_path, HPUProfiler(on_trace_ready=None))  # as in Lightning
    assert not list(tmp_path.iterdir())


def add_with_stacks(folder: Path, **settings: Any) -> HPUProfiler:
    """Record two operators with their stacks; those of a Trainer are deep, and take seconds."""
    profiler = HPUProfiler(
        folder,
        "mine",
        export_to_chrome=False,
        export_to_flame_graph=True,
        schedule=None,
        **settings,
    )
    with profiler.profile("adding"):
        torch.ones(1000).add(1)
    profiler.describe()
    return profiler


def test_a_flame_graph_has_the_stacks(tmp_path: Path) -> None:
    profiler = add_with_stacks(tmp_path)
    stacks = tmp_path / "mine-rank0.stack"
    assert sorted(tmp_path.iterdir()) == [stacks, tmp_path / "mine-rank0.txt"]
    lines = [line.rsplit(" ", 1) for line in stacks.read_text().splitlines()]
    assert all(int(microseconds) > 0 for _, microseconds in lines)
    assert any("test_trace.py" in stack and "_add_with_stacks" in stack for stack, _ in lines)
    assert f"Stacks of what ran, by self_cpu_time_total: {stacks}" in profiler.summary()


def test_stacks_of_a_device_that_reports_nothing_are_said_to_be_empty(tmp_path: Path) -> None:
    profiler = add_with_stacks(tmp_path, metric="self_hpu_time_total")
    assert (tmp_path / "mine-rank0.stack").read_text() == ""
    assert "has none with self_hpu_time_total above 0" in profiler.summary()


def test_the_folder_is_that_of_the_first_of_several_loggers(tmp_path: Path) -> None:
    loggers = [CSVLogger(tmp_path, "first"), CSVLogger(tmp_path, "second")]
    fit(tmp_path, HPUProfiler(), logger=loggers)
    assert (tmp_path / "first" / "version_0" / "fit-rank0.4.pt.trace.json").exists()
    assert not list(tmp_path.glob("second/**/*.pt.trace.json"))
