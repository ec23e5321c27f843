"""What `HPUProfiler` accepts and refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.profiler import ProfilerActivity

from lightning_gaudi import HPUProfiler


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"emit_nvtx": True}, r"emit_nvtx=True\) is not supported: it is for NVIDIA's"),
        ({"use_cuda": True}, r"use_cuda=True\) is not supported: the HPU is recorded"),
        ({"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}, "names CUDA, but a run"),
        ({"sort_by_key": "cuda_time"}, r"sort_by_key='cuda_time'\) is unknown. Pass one of count"),
        ({"schedule": 3}, r"schedule=3\) must take the number of a step"),
        ({"schedule": lambda step: "record"}, "return a torch.profiler.ProfilerAction"),
        ({"schedule": "always"}, "pass None to record everything"),
        ({"group_by_input_shapes": True, "record_shapes": False}, "record_shapes=False leaves"),
        ({"export_to_flame_graph": True, "with_stack": False}, "with_stack=False leaves"),
        (
            {"export_to_flame_graph": True, "metric": "self_cuda_time_total"},
            r"metric='self_cuda_time_total'\) is unknown. Pass one of self_cpu_time_total, self_h",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        HPUProfiler(**settings)


@pytest.mark.parametrize("name", ["recordshapes", "record_functions"])
def test_an_argument_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"HPUProfiler\({name}=...\) is an argument neither"):
        HPUProfiler(**{name: True})


@pytest.mark.parametrize("name", ["sort_by", "row_limit", "maximum"])
def test_an_argument_that_the_table_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=f"Found invalid table_kwargs key: {name}"):
        HPUProfiler(table_kwargs={name: 3})


# Lightning's, of every profiler that was never made: its `__del__` looks at `_stage`.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_argument_that_was_another_by_position_is_refused() -> None:
    """The fourth is export_to_chrome in lightning-habana, and emit_nvtx in Lightning."""
    with pytest.raises(TypeError, match="positional arguments"):
        HPUProfiler("folder", "mine", False, False)  # type: ignore[misc]


def test_a_machine_with_a_gpu_too_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning would sort by CUDA's times there."""
    monkeypatch.setattr("lightning.pytorch.profilers.pytorch.is_cuda_available", lambda: True)
    assert HPUProfiler()._sort_by_key == "self_cpu_time_total"
    assert HPUProfiler()._trace.activities is None


def test_operators_are_sorted_by_the_device_if_asked() -> None:
    assert HPUProfiler()._sort_by_key == "self_cpu_time_total"
    assert HPUProfiler(use_hpu=False, use_cuda=False)._sort_by_key == "self_cpu_time_total"
    assert HPUProfiler(use_hpu=True)._sort_by_key == "hpu_time_total"
    assert HPUProfiler(sort_by_key="count", use_hpu=True)._sort_by_key == "count"


def test_the_vendors_own_profiler_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HABANA_PROFILE", "profile_api_light")
    HPUProfiler()
    monkeypatch.setenv("HABANA_PROFILE", "1")
    with pytest.raises(MisconfigurationException, match="HABANA_PROFILE=1 starts the vendor's own"):
        HPUProfiler()


def test_a_profiler_travels_to_spawned_processes() -> None:
    profiler = HPUProfiler("folder", row_limit=3, activities=[ProfilerActivity.CPU])
    pickle.loads(pickle.dumps(HPUProfiler(export_to_flame_graph=True)))
    for travelled in (pickle.loads(pickle.dumps(profiler)), copy.deepcopy(profiler)):
        assert isinstance(travelled, HPUProfiler)
        assert vars(travelled)["_trace"] == vars(profiler)["_trace"]
