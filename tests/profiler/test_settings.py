"""What `HPUProfiler` refuses."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi import HPUProfiler


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
