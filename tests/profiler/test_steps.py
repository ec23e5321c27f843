"""The numbers of each step, against known counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi import HPUProfiler
from lightning_gaudi.callbacks import GraphMonitor
from lightning_gaudi.profiler import steps
from lightning_gaudi.profiler.steps import COMPILING, DATA, GAP, GRAPHS, HOST, SYNCS, StepMeter
from tests.helpers.profiles import NUM_STEPS, QUIET_RESULTS, ReadingModule, fit, read_trace, table
from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer


@pytest.mark.parametrize("num_reads", [0, 1, 3])
def test_host_syncs_of_each_step_are_counted(num_reads: int, tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=ReadingModule(num_reads))
    summary = trainer.profiler.summary()
    assert summary.startswith(f"HPU profile of {NUM_STEPS} training steps, rank 0 of 1\n")
    counts = [str(count) for count in (num_reads, num_reads, num_reads * NUM_STEPS)]
    assert table(summary)["host syncs"] == counts
    assert table(summary)["graph compilations"] == ["0", "0", "0"]
    assert table(summary)["CPU fallbacks"] == ["0", "0", "0"]


def test_launches_of_each_step_are_counted(tmp_path: Path) -> None:
    class Longer(ReadingModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            batch[0].exp().sin().cos()
            return super().training_step(batch, batch_idx)

    counts = []
    for module in (ReadingModule(0), Longer(0)):
        summary = fit(tmp_path, module=module).profiler.summary()
        counts.append([int(count.replace(",", "")) for count in table(summary)["launches"]])
    (median, largest, total), longer = counts
    assert longer == [median + 3, largest + 3, total + 3 * NUM_STEPS]


def test_the_profiler_waits_for_the_device_once_at_the_end_of_a_trace(tmp_path: Path) -> None:
    num_syncs = {}
    for profiler in (None, "hpu"):
        monitor = GraphMonitor()
        trainer = fit(tmp_path, profiler, ReadingModule(0), callbacks=[monitor])
        assert monitor.report.host_syncs is not None
        num_syncs[profiler] = sum(monitor.report.host_syncs.values())
    # torch's own wait; between two steps, and charged to neither.
    assert num_syncs["hpu"] == num_syncs[None] + 1
    assert table(trainer.profiler.summary())["host syncs"] == ["0", "0", "0"]


@pytest.mark.parametrize(
    ("stage", "name"), [("validate", "validation"), ("test", "test"), ("predict", "prediction")]
)
def test_evaluation_is_profiled_and_its_end_charged_to_no_step(
    stage: str, name: str, tmp_path: Path
) -> None:
    trainer = hpu_trainer(profiler="hpu", default_root_dir=tmp_path)
    getattr(trainer, stage)(ValidatedModule(), batches(6), **QUIET_RESULTS[stage])
    summary = trainer.profiler.summary()
    assert summary.startswith(f"HPU profile of 6 {name} steps")
    assert table(summary)["host syncs"][1] in ("0", "1")  # prediction brings its output to the host
    assert (tmp_path / f"{stage}-rank0.4.pt.trace.json").exists()


def test_validation_and_checkpoints_are_no_part_of_a_step(tmp_path: Path) -> None:
    class Slow(ReadingModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.net(batch[0]).sum().item()

    profiler = HPUProfiler(export_to_chrome=False)
    trainer = hpu_trainer(
        profiler=profiler, max_epochs=1, val_check_interval=4, default_root_dir=tmp_path
    )
    trainer.fit(Slow(), batches(NUM_STEPS), batches(3))
    assert table(profiler.summary())["host syncs"] == ["1", "1", str(NUM_STEPS)]
    # Between steps 3 and 4 there was a validation.
    assert len(profiler._meter.values[GAP]) == NUM_STEPS - 2


def test_another_device_is_said_to_lack_the_counts(tmp_path: Path) -> None:
    trainer = fit(tmp_path, accelerator="cpu")
    summary = trainer.profiler.summary()
    assert set(table(summary)) == {"step on the host", "between two steps", "waiting for data"}
    assert summary.count("Not on an HPU but on cpu: host syncs and graph compilations") == 1
    assert read_trace(tmp_path / "fit-rank0.4.pt.trace.json")


def test_a_device_that_does_not_count_syncs_has_the_reads_of_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = steps.vendor.metric
    monkeypatch.setattr(
        steps.vendor, "metric", lambda name: None if name == "host_sync" else known(name)
    )
    module = ReadingModule(2)
    # An optimizer that reads nothing.
    monkeypatch.setattr(
        module, "configure_optimizers", lambda: torch.optim.SGD(module.parameters())
    )
    summary = fit(tmp_path, module=module).profiler.summary()
    assert "host syncs " not in summary
    assert (
        "does not count host syncs. The traced steps called .item() 2 times a step, CPU tensors"
        in summary
    )


def test_the_meter_tells_host_gap_and_data_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now, syncs = [0.0], [0.0]
    monkeypatch.setattr(steps.time, "perf_counter", lambda: now[0])
    meter = StepMeter(lambda: {SYNCS: syncs[0]})

    def after(seconds: float, call: Callable[[], Any], num_syncs: int = 0) -> Any:
        now[0] += seconds
        syncs[0] += num_syncs
        return call()

    for num_syncs in (1, 2):
        assert after(5, meter.close) is (num_syncs == 2)
        after(100, meter.open, 7)  # the profiler's own time and syncs count for nobody
        after(0, meter.fetch_started)
        after(3, meter.fetch_stopped)
        after(1, meter.step_started, 1)
        after(10, meter.step_stopped, num_syncs)
    after(2, meter.close)
    assert meter.num_steps == 2
    assert list(meter.values[HOST]) == [10, 10]
    assert list(meter.values[GAP]) == [5 + 3 + 1]
    assert list(meter.values[DATA]) == [3]
    assert list(meter.values[SYNCS]) == [2, 3]


@pytest.mark.parametrize(("seconds", "is_shown"), [(1.5, True), (0.0, False)])
def test_time_compiling_is_shown_where_the_device_tells_it(seconds: float, is_shown: bool) -> None:
    totals = iter([{GRAPHS: 0.0, COMPILING: 0.0}, {GRAPHS: 1.0, COMPILING: seconds}])
    meter = StepMeter(lambda: next(totals))
    meter.open()
    meter.step_started()
    meter.step_stopped()
    meter.close()
    rows = table(f"title\n{meter.table()}")
    assert rows["graph compilations"][2] == "1"
    assert rows.get("time compiling") == (["1,500.0 ms"] * 3 if is_shown else None)
