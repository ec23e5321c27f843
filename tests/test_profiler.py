"""`HPUProfiler`: its numbers against known counts, its traces, and what it refuses."""

from __future__ import annotations

import enum
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.profiler import ProfilerActivity

from lightning_gaudi import HPUProfiler
from lightning_gaudi.callbacks import GraphMonitor
from lightning_gaudi.profiler import steps
from lightning_gaudi.profiler.steps import DATA, GAP, HOST, SYNCS, StepMeter

from .helpers.process import run, run_python
from .helpers.tiny import TinyModule, ValidatedModule, batches, hpu_trainer

NUM_STEPS = 8


class ReadingModule(TinyModule):
    """Waits for the device so many times in each training step, and has a range of its own."""

    def __init__(self, num_reads: int = 1, fails_at: int | None = None) -> None:
        super().__init__()
        self.num_reads = num_reads
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == self.fails_at:
            raise ValueError("as asked")
        with self.trainer.profiler.profile("my own range"):
            loss = super().training_step(batch, batch_idx)
        for _ in range(self.num_reads):
            loss.item()
        return loss


def fit(
    folder: Path, profiler: Any = "hpu", module: pl.LightningModule | None = None, **settings: Any
) -> pl.Trainer:
    settings = {"max_epochs": 1, "default_root_dir": folder, **settings}
    trainer = hpu_trainer(profiler=profiler, **settings)
    trainer.fit(module or ReadingModule(), batches(NUM_STEPS))
    return trainer


def table(summary: str) -> dict[str, list[str]]:
    """Row -> median, maximum, total, as they are shown."""
    rows = summary.split("Trace of")[0].split("No trace")[0].splitlines()[2:]
    return {row[:20].strip(): [row[at : at + 12].strip() for at in (20, 32, 44)] for row in rows}


def read_trace(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def ranges(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    found = [event for event in events if event["ph"] == "X" and event["name"] == name]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in found)


@pytest.mark.parametrize("num_reads", [0, 1, 3])
def test_host_syncs_of_each_step_are_counted(num_reads: int, tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=ReadingModule(num_reads))
    summary = trainer.profiler.summary()
    assert summary.startswith(f"HPU profile of {NUM_STEPS} training steps, rank 0 of 1\n")
    counts = [str(count) for count in (num_reads, num_reads, num_reads * NUM_STEPS)]
    assert table(summary)["host syncs"] == counts
    assert table(summary)["graph compilations"] == ["0", "0", "0"]


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


def test_the_trace_shows_the_steps_of_the_schedule(tmp_path: Path) -> None:
    trainer = fit(tmp_path)
    (trace,) = tmp_path.iterdir()
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
    summary = trainer.profiler.summary()
    assert f"Trace of steps 2 to 4: {trace} (open it at https://ui.perfetto.dev)" in summary
    assert "The trace shows the host only: the device reported nothing to torch." in summary
    assert "\nmy own range " in summary
    assert "run_training_batch" not in summary


def test_lines_are_short_and_aligned(tmp_path: Path) -> None:
    lines = fit(tmp_path).profiler.summary().splitlines()
    operators = lines.index("Operators in steps 2 to 4, by self_cpu_time_total")
    assert len({len(line) for line in lines[1:7]}) == 1
    assert len({len(line) for line in lines[operators + 1 :]}) == 1
    assert len(lines[operators + 2 :]) == 10
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
    profiler = HPUProfiler(tmp_path)
    fit(tmp_path, profiler, fast_dev_run=2)
    events = read_trace(tmp_path / "fit-rank0.1.pt.trace.json")
    assert len(ranges(events, "[pl][profile]run_training_batch")) == 2
    assert profiler.summary().startswith("HPU profile of 2 training steps")


def test_a_schedule_that_records_nothing_is_said(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=20, warmup=1, active=1)
    summary = fit(tmp_path, HPUProfiler(schedule=schedule)).profiler.summary()
    assert "No trace: the schedule recorded none of these steps." in summary
    assert not list(tmp_path.iterdir())


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


QUIET_RESULTS: dict[str, dict[str, Any]] = {
    "validate": {"verbose": False},
    "test": {"verbose": False},
    "predict": {"return_predictions": False},
}


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


def test_a_full_disk_costs_the_trace_not_the_fit(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    result = run_python(
        """
        import resource, sys, warnings
        from tests.helpers.tiny import TinyModule, batches, hpu_trainer
        folder = sys.argv[1]
        trainer = hpu_trainer(profiler="hpu", max_epochs=1, default_root_dir=folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        trainer.fit(TinyModule(), batches(8))
        print(trainer.global_step, trainer.profiler.summary())
        """,
        str(tmp_path),
        cwd=Path(__file__).parents[1],
    )
    assert result.stdout.startswith("8 HPU profile of 8 training steps")
    assert "No trace of steps 2 to 4: Could not export the trace to " in result.stdout
    assert "it was cut short. Set TMPDIR to a folder with more space." in result.stdout
    assert "goes on without its trace" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_failed_fit_leaves_its_trace_and_no_running_profiler(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as asked"):
        fit(tmp_path, module=ReadingModule(fails_at=4))
    assert not torch.autograd._profiler_enabled()
    (trace,) = tmp_path.iterdir()
    assert trace.name == "fit-rank0.3.pt.trace.json"
    assert len(ranges(read_trace(trace), "[pl][profile]run_training_batch")) >= 2
    assert "Trace of steps 2 to 4" in fit(tmp_path).profiler.summary()


def test_a_running_profiler_is_left_alone(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as users:
        trainer = fit(tmp_path)
    assert any(event.key == "aten::addmm" for event in users.key_averages())
    assert "No trace: another torch.profiler is running." in trainer.profiler.summary()


def test_module_names_are_in_the_trace_if_asked(tmp_path: Path) -> None:
    module = ReadingModule()
    fit(tmp_path, HPUProfiler(record_module_names=True, group_by_input_shapes=True), module)
    names = {event["name"] for event in read_trace(tmp_path / "fit-rank0.4.pt.trace.json")}
    assert "[pl][module]torch.nn.modules.linear.Linear: net.0" in names
    assert not module.net[0]._forward_hooks


def test_on_trace_ready_takes_the_place_of_the_file(tmp_path: Path) -> None:
    seen: list[Any] = []
    fit(tmp_path, HPUProfiler(on_trace_ready=seen.append))
    assert [type(profile) for profile in seen] == [torch.profiler.profile]
    assert not list(tmp_path.iterdir())


class VendorActivity(enum.Enum):
    """As the vendor's release 1.19 puts it in the place of torch's."""

    CPU = 1
    CUDA = 2
    HPU = 3


class VendorProfile(torch.profiler.profile):
    """As the vendor's: it knows its own activities only, and adds the device to the file."""

    asked: tuple[Any, ...] = ()

    def __init__(self, *, activities: Any, **settings: Any) -> None:
        VendorProfile.asked = tuple(activities)
        assert all(isinstance(activity, VendorActivity) for activity in activities)
        super().__init__(activities=[ProfilerActivity.CPU], **settings)

    def export_chrome_trace(self, path: str) -> None:
        super().export_chrome_trace(path)
        trace = json.loads(Path(path).read_text())
        kernel = {"ph": "X", "cat": "Kernel", "name": "gemm", "pid": 0, "ts": 0, "dur": 1}
        trace["traceEvents"].append(kernel)
        Path(path).write_text(json.dumps(trace))


@pytest.mark.parametrize("activities", [None, [ProfilerActivity.CPU, ProfilerActivity.HPU]])
def test_the_vendors_profiler_is_used_whoever_was_imported_first(
    activities: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's names have been imported here, Lightning's profilers and ours, long before."""
    settings = {} if activities is None else {"activities": activities}
    profiler = HPUProfiler(**settings)
    monkeypatch.setattr(torch.profiler, "ProfilerActivity", VendorActivity)
    monkeypatch.setattr(torch.profiler, "profile", VendorProfile)
    summary = fit(tmp_path, profiler).profiler.summary()
    assert VendorProfile.asked == (VendorActivity.CPU, VendorActivity.HPU)
    assert "host only" not in summary
    assert ranges(read_trace(tmp_path / "fit-rank0.4.pt.trace.json"), "gemm") == [(0, 1)]


def test_a_torch_without_the_activity_is_said_to_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {ProfilerActivity.CPU})
    summary = fit(tmp_path).profiler.summary()
    assert "this torch and this release of the vendor's package cannot record the HPU" in summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"emit_nvtx": True}, r"emit_nvtx=True\) is not supported: it is for NVIDIA's"),
        ({"export_to_flame_graph": True}, "pass with_stack=True"),
        ({"sort_by_key": "cuda_time"}, r"sort_by_key='cuda_time'\) is unknown. Pass one of count"),
        ({"schedule": 3}, r"schedule=3\) must take the number of a step"),
        ({"schedule": lambda step: "record"}, "return a torch.profiler.ProfilerAction"),
        ({"group_by_input_shapes": True, "record_shapes": False}, "record_shapes=False leaves"),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        HPUProfiler(**settings)


def test_an_argument_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match=r"HPUProfiler\(recordshapes=...\) is an argument neither"):
        HPUProfiler(recordshapes=True)


def test_the_vendors_own_profiler_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HABANA_PROFILE", "profile_api_light")
    HPUProfiler()
    monkeypatch.setenv("HABANA_PROFILE", "1")
    with pytest.raises(MisconfigurationException, match="HABANA_PROFILE=1 starts the vendor's own"):
        HPUProfiler()


def test_a_profiler_travels_to_spawned_processes() -> None:
    assert isinstance(pickle.loads(pickle.dumps(HPUProfiler("folder"))), HPUProfiler)


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


def test_graph_compilations_of_lazy_mode_are_counted(tmp_path: Path) -> None:
    """The profiler against `GraphMonitor`, which counts from the callbacks."""
    result = run_python(
        """
        import sys
        from lightning_gaudi.callbacks import GraphMonitor
        from tests.helpers.tiny import TinyModule, batches, hpu_trainer
        monitor = GraphMonitor()
        trainer = hpu_trainer(
            profiler="hpu", max_epochs=1, default_root_dir=sys.argv[1], callbacks=[monitor]
        )
        trainer.fit(TinyModule(), batches(8))
        print(monitor.report.training_graphs)
        print(trainer.profiler.summary())
        """,
        str(tmp_path),
        env={"PT_HPU_LAZY_MODE": "1"},
        cwd=Path(__file__).parents[1],
    )
    expected, summary = result.stdout.split("\n", 1)
    rows = table(summary)
    assert int(expected) >= 2
    assert rows["graph compilations"][0] == "0"
    assert rows["graph compilations"][2] == expected
    assert rows["host syncs"] == ["0", "0", "0"]
    assert rows["time compiling"][2].endswith(" ms")
    assert float(rows["time compiling"][2].split()[0]) > 0


def test_the_name_means_the_class_of_the_family(tmp_path: Path) -> None:
    """In one process, with torch's profiler imported first and this package never."""
    run_python(
        """
        import sys
        from torch.profiler import ProfilerActivity, profile
        from lightning.pytorch.profilers import PyTorchProfiler
        import lightning.pytorch, pytorch_lightning

        for pl in (pytorch_lightning, lightning.pytorch):
            quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
            trainer = pl.Trainer(accelerator="hpu", devices=1, profiler="HPU", fast_dev_run=3,
                                 default_root_dir=sys.argv[1], enable_model_summary=False, **quiet)
            import lightning_gaudi, lightning_gaudi.pytorch_lightning as mirror
            ours = lightning_gaudi if pl is lightning.pytorch else mirror
            assert type(trainer.profiler) is ours.HPUProfiler, type(trainer.profiler)
            assert isinstance(trainer.profiler, pl.profilers.Profiler)

            from lightning.pytorch.demos.boring_classes import BoringModel as Boring
            from pytorch_lightning.demos.boring_classes import BoringModel as OtherBoring
            trainer.fit((Boring if pl is lightning.pytorch else OtherBoring)())
            assert "3 training steps" in trainer.profiler.summary()
            for name in ("simple", None, ours.HPUProfiler(row_limit=3)):
                pl.Trainer(accelerator="hpu", profiler=name, **quiet)
            try:
                pl.Trainer(profiler="habana", **quiet)
            except pl.utilities.exceptions.MisconfigurationException as error:
                assert "can only be one of" in str(error)
            else:
                raise AssertionError
        """,
        str(tmp_path),
    )


@pytest.mark.parametrize("package", ["lightning_gaudi", "lightning_gaudi.pytorch_lightning"])
def test_the_command_line_and_yaml_name_the_profiler(package: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
trainer:
  profiler:
    class_path: {package}.HPUProfiler
    init_args: {{dirpath: {tmp_path}/traces, filename: mine, row_limit: 3}}
"""
    )
    lightning = "pytorch_lightning" if "." in package else "lightning.pytorch"
    source = f"""
        import sys
        from {lightning}.cli import LightningCLI
        from {lightning}.demos.boring_classes import BoringModel
        quiet = ["enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"]
        shared = ["fit", "--trainer.accelerator=hpu", "--trainer.fast_dev_run=2"]
        shared += [f"--trainer.{{name}}=false" for name in quiet]
        for args in (["--trainer.profiler=hpu"], ["--config=" + sys.argv[1]]):
            cli = LightningCLI(BoringModel, args=shared + args, save_config_callback=None)
            print(type(cli.trainer.profiler).__module__)
    """
    result = run_python(
        source, str(config), env={"JSONARGPARSE_DEPRECATION_WARNINGS": "off"}, cwd=tmp_path
    )
    assert result.stdout.split() == [f"{package}.profiler.hpu"] * 2, result.stdout
    report = (tmp_path / "traces" / "fit-mine-rank0.txt").read_text()
    assert report.startswith("HPU profile of 2 training steps")
    assert len(report.split("host, total\n")[1].splitlines()) == 3


@pytest.mark.slow
def test_every_rank_has_its_trace_and_report_and_rank_0_speaks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
from lightning_gaudi import HPUProfiler
from tests.helpers.tiny import TinyModule, batches, hpu_trainer
for filename in (None, "mine"):
    profiler = HPUProfiler(sys.argv[1], filename)
    trainer = hpu_trainer(devices=2, profiler=profiler, max_epochs=1)
    trainer.fit(TinyModule(), batches(12))
"""
    )
    folder = tmp_path / "out"
    root = str(Path(__file__).parents[1])
    result = run(
        [sys.executable, str(script), str(folder)],
        env={"LIGHTNING_GAUDI_SIMULATE": "2", "PYTHONPATH": root},
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "fit-mine-rank0.4.pt.trace.json",
        "fit-mine-rank0.txt",
        "fit-mine-rank1.4.pt.trace.json",
        "fit-mine-rank1.txt",
        "fit-rank0.4.pt.trace.json",
        "fit-rank1.4.pt.trace.json",
    ]
    for rank in range(2):
        report = (folder / f"fit-mine-rank{rank}.txt").read_text()
        assert report.startswith(f"HPU profile of 6 training steps, rank {rank} of 2\n")
        assert table(report)["host syncs"][0] == "0"  # DDP waits in its first step
        trace = json.loads((folder / f"fit-mine-rank{rank}.4.pt.trace.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank
    shown = result.stdout + result.stderr
    assert shown.count("HPU profile of 6 training steps, rank 0 of 2") == 1
    assert "rank 1 of 2" not in shown
