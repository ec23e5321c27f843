"""One function is told of what the card is given to do."""

from __future__ import annotations

import json
from typing import Any

from lightning_gaudi.simulator.settings import RULES
from tests.helpers.forked import fork_python

_START = """
import json, torch
from lightning_gaudi.simulator import observer
events = []
observer.observe(lambda *event: events.append(event))
"""
_END = "print(json.dumps(events))"


def _events(source: str, **env: str) -> list[Any]:
    result = fork_python(f"{_START}{source}\n{_END}", env={RULES: "warn", **env})
    return [tuple(event) for event in json.loads(result.stdout)]


def test_eager_mode_tells_launches_waits_copies_and_rules() -> None:
    source = """
x = torch.ones(3).to("hpu")
torch.ones(3).to("hpu", non_blocking=True)
x.add(1).exp()
x.view(3, 1)
x.sum().item()
x[x > 0]
x.cpu()
"""
    assert _events(source) == [
        ("transfer", "host_to_device", 12, "blocking"),
        ("transfer", "host_to_device", 12, ""),
        *[("launch", "", 1, "")] * 2,
        ("launch", "", 1, ""),
        ("host_sync", "aten::_local_scalar_dense", 1, ""),
        ("launch", "", 1, ""),
        ("rule", "mask-index-dynamic", 1, "aten::index.Tensor"),
        ("launch", "", 1, ""),
        ("host_sync", "aten::index", 1, ""),
        ("transfer", "device_to_host", 12, ""),
        ("host_sync", "copy_to_host", 1, ""),
    ]


def test_lazy_mode_tells_graphs_as_they_end_and_why_they_are_compiled_again() -> None:
    source = """
from habana_frameworks.torch.core import mark_step
for size in (2, 2, 3):
    x = torch.zeros(size, device="hpu")
    mark_step()
    y = x + 1
    mark_step()
"""
    told = [event for event in _events(source, PT_HPU_LAZY_MODE="1") if event[0] == "graph"]
    assert [event[1] for event in told] == [
        *("compiled", "compiled", "reused", "reused", "recompiled", "recompiled")
    ]
    assert told[-1][3] == "input 0: [3] was [2]"


def test_torch_compile_tells_compilations_and_a_launch_for_each_graph() -> None:
    source = """
add = torch.compile(lambda x: (x + 1) * 2, backend="hpu_backend", dynamic=False)
for size in (2, 2, 3):
    add(torch.empty(size, device="hpu"))
"""
    assert _events(source) == [
        ("compilation", "compiled", 1, ""),
        ("launch", "", 1, ""),
        ("launch", "", 1, ""),
        ("compilation", "recompiled", 1, "input 0: [3] was [2]"),
        ("launch", "", 1, ""),
    ]


def test_collectives_are_told_with_their_bytes() -> None:
    source = """
import tempfile
import habana_frameworks.torch.distributed.hccl
torch.distributed.init_process_group(
    "hccl", store=torch.distributed.HashStore(), rank=0, world_size=1
)
x = torch.zeros(4, device="hpu")
events.clear()
torch.distributed.all_reduce(x)
torch.distributed.barrier()
"""
    told = _events(source)
    assert ("collective", "all_reduce", 16, "") in told
    assert ("host_sync", "barrier", 1, "") in told


def test_an_observer_that_raises_changes_nothing() -> None:
    source = """
import torch
from lightning_gaudi.simulator import observer
observer.observe(lambda *event: 1 / 0)
print((torch.ones(2, device="hpu") + 1).tolist())
"""
    result = fork_python(source)
    assert result.stdout == "[2.0, 2.0]\n"
    assert "ZeroDivisionError" in result.stderr


def test_an_observed_rule_is_told_and_not_warned_of() -> None:
    source = f"{_START}torch.ones(1, dtype=torch.float64, device='hpu')\n{_END}"
    result = fork_python(source, env={RULES: "warn"})
    assert ["rule", "float64-demoted", 1, "aten::empty with float64"] in json.loads(result.stdout)
    assert "GaudiRuleWarning" not in result.stderr
