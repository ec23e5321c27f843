"""What torch's profiler, or the vendor's in its place, is asked to record."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from lightning_gaudi import HPUProfiler
from tests.helpers.profiles import event_counts, fit, ranges, read_trace


def test_a_running_profiler_is_left_alone(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as users:
        trainer = fit(tmp_path)
    assert any(event.key == "aten::addmm" for event in users.key_averages())
    assert "No trace: another torch.profiler is running." in trainer.profiler.summary()


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


def test_the_hpu_alone_is_said_not_to_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {ProfilerActivity.CPU})
    profiler = HPUProfiler(activities=[ProfilerActivity.HPU])
    summary = fit(tmp_path, profiler).profiler.summary()
    assert "No trace: activities=... names the HPU alone, which cannot be recorded." in summary
    assert profiler.function_events is None


def test_activities_are_those_that_are_asked_for(tmp_path: Path) -> None:
    fit(tmp_path, profiler := HPUProfiler(activities=["CPU"]))
    assert event_counts(profiler)["aten::addmm"] == 6
    assert "shows the host only" not in profiler.summary()  # nothing else was asked for


def test_a_trace_without_events_has_no_operators(tmp_path: Path) -> None:
    try:
        config = torch._C._profiler._ExperimentalConfig(trace_only=True)
    except TypeError:
        pytest.skip("needs a torch whose _ExperimentalConfig has trace_only")
    profiler = HPUProfiler(experimental_config=config)
    summary = fit(tmp_path, profiler).profiler.summary()
    assert "No operators: experimental_config has trace_only=True." in summary
    assert "Trace of steps 2 to 4: " in summary
    assert profiler.function_events is None
