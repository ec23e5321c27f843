"""wrap_in_hpu_graph: when a graph is found again, what it costs, what it is told."""

from __future__ import annotations

import copy
import dataclasses
import gc
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

hpu: Any = torch.hpu

pytestmark = pytest.mark.usefixtures("lazy")

calls = 0
"""How often the Python of `Net` ran; not a state of the module, which would be reported."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor, sign: float = 1.0, other: Any = None) -> Any:
        global calls
        calls += 1
        y = self.layers(x) * sign
        return {"y": y, "rows": y[0]} if other is None else {"y": y + other}


@pytest.fixture
def net() -> Net:
    global calls
    calls = 0
    torch.manual_seed(0)
    return Net().to("hpu").eval()


def _x(num_rows: int = 3, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(num_rows, 8).to("hpu", dtype)


def _in_use() -> int:
    gc.collect()
    return hpu.memory_allocated()


@pytest.mark.parametrize("disable_tensor_cache", [False, True])
@pytest.mark.parametrize("dry_run", [None, False, True])
@torch.no_grad()
def test_replays_equal_the_module_and_run_none_of_its_python(
    net: Net, disable_tensor_cache: bool, dry_run: bool | None
) -> None:
    reference = copy.deepcopy(net)
    hpu.wrap_in_hpu_graph(net, disable_tensor_cache=disable_tensor_cache, dry_run=dry_run)
    for num_rows in (3, 5, 3, 3, 5):
        x = _x(num_rows)
        expected, before = reference(x), calls
        result = net(x)
        assert torch.equal(result["y"], expected["y"])
        assert torch.equal(result["rows"], expected["rows"])
    assert calls == before  # the last of them ran no Python
    assert calls == 5 + 2


@torch.no_grad()
def test_results_are_the_same_tensors_at_every_replay(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    first, second = net(_x()), net(_x())
    assert first is second


@torch.no_grad()
def test_a_replay_overwrites_the_inputs_of_the_capture(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    first, second = _x(), _x()
    net(first)
    net(second)
    assert torch.equal(first, second)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float


NEW_GRAPHS: dict[str, tuple[Any, Any, bool]] = {
    "rows": (_x(3), _x(4), True),
    "equal": (_x(3), _x(3), False),
    "dtype": (_x(3), _x(3, dtype=torch.bfloat16), True),
    "transposed": (_x(8), _x(8).t(), True),
    "offset": (_x(4)[:3], _x(4)[1:], True),
    "scalar": ((_x(3), 1.0), (_x(3), 2.0), True),
    "equal_scalar": ((_x(3), 1.0), (_x(3), 1.0), False),
    "dict": ({"a": _x(3)}, {"b": _x(3)}, True),
    "dataclass": (Batch(_x(3), 1.0), Batch(_x(3), 1.0), False),
    "other_dataclass": (Batch(_x(3), 1.0), Batch(_x(3), 2.0), True),
    "object": (object(), object(), True),
    "user_dict": (UserDict(a=_x(3)), UserDict(a=_x(3)), False),
    "size": (torch.Size([2]), torch.Size([3]), True),
}


@pytest.mark.parametrize("name", NEW_GRAPHS)
def test_a_graph_is_found_again_by(name: str) -> None:
    one, other, is_new = NEW_GRAPHS[name]
    assert (hpu.graphs.input_hash(one) != hpu.graphs.input_hash(other)) == is_new


def test_a_graph_is_found_again_by_whether_autocast_is_on() -> None:
    x = _x()
    without = hpu.graphs.input_hash(x)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        assert hpu.graphs.input_hash(x) != without


def test_before_1_24_a_graph_is_found_for_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE_RELEASE", "1.22")
    one, other, _ = NEW_GRAPHS["dtype"]
    assert hpu.graphs.input_hash(one) == hpu.graphs.input_hash(other)


def test_what_has_no_hash_is_refused() -> None:
    with pytest.raises(TypeError, match="unhashable type: 'set'"):
        hpu.graphs.input_hash({"a": {1, 2}})


@torch.no_grad()
def test_beyond_max_graphs_the_module_itself_runs(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net, max_graphs=1)
    net(_x(2))
    for _ in range(3):
        net(_x(3))
    net(_x(2))
    assert calls == 1 + 3


@torch.no_grad()
def test_graphs_are_bypassed_on_request(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    x = _x()
    assert torch.equal(net(x)["y"], net(x, bypass_hpu_graphs=True)["y"])
    assert calls == 2


@torch.no_grad()
def test_warm_up_captures_and_does_not_replay(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    first = net(_x(), warmup_mode=True)["y"].clone()
    assert torch.equal(net(_x(), warmup_mode=True)["y"], first)
    assert not torch.equal(net(_x())["y"], first)


@pytest.mark.slow
@torch.no_grad()
def test_memory_is_that_of_inputs_and_outputs_and_comes_back(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    before = _in_use()
    for num_rows in (16, 32):
        net(_x(num_rows))
    assert _in_use() - before == (16 + 32) * 8 * 4 * 2
    net.clear_cache()
    assert _in_use() == before


@pytest.mark.slow
@torch.no_grad()
def test_without_the_tensor_cache_inputs_are_not_kept(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net, disable_tensor_cache=True)
    before = _in_use()
    net(_x(16))
    assert _in_use() - before == 16 * 8 * 4


@torch.no_grad()
def test_the_environment_overrules_the_tensor_cache(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PT_HPUGRAPH_DISABLE_TENSOR_CACHE", "1")
    hpu.wrap_in_hpu_graph(net)
    first = _x()
    kept = first.clone()
    net(first)
    net(_x())
    assert torch.equal(first, kept)  # read where it is, so nothing was copied into it


class Cache(nn.Module):
    def forward(self, cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, position, x)
        return cache.sum(0)


@pytest.mark.slow_but("False")
@pytest.mark.parametrize("free_inplace", [False, True])
@torch.no_grad()
def test_a_cache_given_as_an_argument_is_updated_in_place(free_inplace: bool) -> None:
    model = hpu.wrap_in_hpu_graph(Cache(), disable_tensor_cache=True, free_inplace=free_inplace)
    cache, rows = torch.zeros(4, 64, device="hpu"), torch.arange(256.0).view(4, 64).to("hpu")
    for i in range(4):
        total = model(cache, torch.tensor([i]).to("hpu"), rows[i : i + 1].clone(),
                      cache_tensors_list=[cache])  # fmt: skip
    assert torch.equal(cache, rows)
    assert torch.equal(total, rows.sum(0))
    weight = cache.nbytes
    del cache
    before = _in_use()
    model.clear_inputs()
    freed = 0 if free_inplace else weight
    assert before - _in_use() >= freed


@torch.no_grad()
def test_a_number_on_the_host_is_read_at_each_replay() -> None:
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(lambda x, factor: x * factor)
    x = torch.ones(2, device="hpu")
    assert [wrapped(x, torch.tensor(float(i)))[0].item() for i in range(3)] == [0.0, 1.0, 2.0]


@torch.no_grad()
def test_an_argument_of_another_type_is_refused() -> None:
    with pytest.raises(AssertionError, match="a list at its capture and a tuple at its replay"):
        hpu.graphs.copy_to([1], (1,))
    with pytest.raises(AssertionError, match=r"keys \['a'\] at its capture and with \['b'\]"):
        hpu.graphs.copy_to({"a": 1}, {"b": 1})


@torch.no_grad()
def test_a_forward_that_raises_leaves_no_graph(net: Net) -> None:
    hpu.wrap_in_hpu_graph(net)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        net(torch.ones(2, 3, device="hpu"))
    assert torch.equal(net(_x())["y"], net(_x())["y"])


@torch.no_grad()
def test_statistics_are_printed_on_request(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    hpu.wrap_in_hpu_graph(net, verbose=True, log_frequency=1, max_graphs=7)
    net(_x())
    net(_x())
    printed = capsys.readouterr().out
    assert printed.count("HPU graphs for inference") == 2
    assert "max_graphs=7" in printed
    assert "graphs: 1" in printed
    hpu.wrap_in_hpu_graph(Net().to("hpu")).log_statistics()
    assert "graphs: 0" in capsys.readouterr().out


def test_a_tensor_packer_takes_tensors_out_and_puts_others_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    packer = hpu.TensorPacker(verbose=True)
    x, y, z = _x(), _x(), _x()
    tensors, metadata = packer.pack(({"x": x, "flag": 2}, [y], (z,)))
    assert str(metadata) == "({'x': #0, 'flag': 2}, [#1], (#2,))"
    assert all(a is b for a, b in zip(tensors, (x, y, z), strict=True))
    assert packer.unpack((z, y, x), metadata)[0]["x"] is z
    assert "int is no input" in capsys.readouterr().out
