"""What a card does not notice about a captured graph, and the simulator reports."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.rules import GaudiRuleError, findings, forget_findings

hpu: Any = torch.hpu

pytestmark = [
    pytest.mark.usefixtures("lazy"),
    pytest.mark.filterwarnings("ignore::lightning_gaudi.simulator.rules.GaudiRuleWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_found() -> Iterator[None]:
    forget_findings()
    rules.set_mode("warn")
    with torch.no_grad():
        yield
    forget_findings()


class Net(nn.Module):
    """Does with its state what it is told; `use` is not asked for at a replay."""

    def __init__(self, use: Callable[[Any, torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("mask", torch.ones(4))
        self.calls = 0
        self.scale = 2.0
        self.unread = 1.0
        self.seen: list[int] = []
        self.__dict__["use"] = use

    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        x = self.dropout(self.layer(x) * self.scale * self.mask)
        return self.use(self, x, other)


def _wrapped(use: Callable[[Any, torch.Tensor, Any], torch.Tensor] = lambda s, x, o: x) -> Net:
    net: Net = hpu.wrap_in_hpu_graph(Net(use).to("hpu").eval())
    return net


def _x() -> torch.Tensor:
    return torch.ones(2, 4, device="hpu")


def _found() -> list[tuple[str, str, str]]:
    return [(found.rule, found.operator, found.detail) for found in findings()]


def _count(net: Net, x: torch.Tensor, other: Any) -> torch.Tensor:
    net.calls += 1
    return x


def _remember(net: Net, x: torch.Tensor, other: Any) -> torch.Tensor:
    net.seen.append(1)
    return x


def _replace(net: Net, x: torch.Tensor, other: Any) -> torch.Tensor:
    net.mask = net.mask + 1
    return x


STATES: dict[str, tuple[Any, str]] = {
    "counter": (_count, "Net.calls changed from 0 to 1"),
    "list": (_remember, "Net.seen changed from a list of 0 to a list of 1"),
    "tensor": (_replace, "Net.mask changed from one tensor to one tensor"),
}


@pytest.mark.parametrize("name", STATES)
def test_python_state_that_a_capture_changes_is_reported(name: str) -> None:
    use, detail = STATES[name]
    _wrapped(use)(_x())
    assert _found() == [("graph-python-state", "graph::capture", detail)]
    assert findings()[0].file == __file__


CHANGES: dict[str, tuple[Callable[[Net], object], str]] = {
    "buffer": (
        lambda net: setattr(net, "mask", torch.zeros(4, device="hpu")),
        "Net.mask is another tensor than at the capture",
    ),
    "parameter": (
        lambda net: setattr(net.layer, "weight", nn.Parameter(torch.zeros(4, 4, device="hpu"))),
        "Net.layer.weight is another tensor than at the capture",
    ),
    "data": (
        lambda net: setattr(net.layer.weight, "data", torch.zeros(4, 4, device="hpu")),
        "Net.layer.weight is another tensor than at the capture",
    ),
    "moved": (
        lambda net: net.layer.cpu(),
        "Net.layer.weight is another tensor than at the capture; "
        "Net.layer.bias is another tensor than at the capture",
    ),
    "scalar": (
        lambda net: setattr(net, "scale", 3.0),
        "Net.scale was 2.0 at the capture and is 3.0",
    ),
    "mode": (
        lambda net: net.train(),
        "Net.dropout.training was False at the capture and is True",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_value_that_a_replay_does_not_see_is_reported(name: str) -> None:
    change, detail = CHANGES[name]
    net = _wrapped()
    net(_x())
    net(_x())
    assert _found() == []
    change(net)
    net(_x())
    assert _found() == [("graph-stale-value", "graph::replay", detail)]


def test_what_is_updated_in_place_or_never_read_is_not_reported() -> None:
    net = _wrapped()
    net(_x())
    net.mask.zero_()
    net.load_state_dict({name: value * 2 for name, value in net.state_dict().items()})
    net.unread = 5.0
    assert net(_x()).count_nonzero() == 0
    assert _found() == []


class State:
    """An argument that is found again by its identity."""

    def __init__(self) -> None:
        self.mask = torch.ones(4, device="hpu")


def test_tensors_of_an_argument_object_are_not_copied_to_the_graph() -> None:
    net, state = _wrapped(lambda net, x, other: x * other.mask), State()
    net(_x(), state)
    net(_x(), state)
    assert _found() == []
    state.mask = torch.zeros(4, device="hpu")
    net(_x(), state)
    detail = "State.mask is another than at the capture"
    assert _found() == [("graph-stale-value", "graph::replay", detail)]


def test_tensors_in_a_user_dict_are_not_copied_to_the_graph() -> None:
    net = _wrapped(lambda net, x, other: x * other["mask"])
    for _ in range(2):
        net(_x(), UserDict(mask=torch.ones(4, device="hpu")))
    detail = "UserDict['mask'] is another than at the capture"
    assert _found() == [("graph-stale-value", "graph::replay", detail)]


def test_an_argument_that_is_not_updated_in_place_is_reported() -> None:
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(lambda cache, x: cache.add_(x).sum())
    first, second = (torch.zeros(2, 4, device="hpu") for _ in range(2))
    wrapped(first, _x())
    wrapped(first, _x())
    assert (_found(), first.sum().item()) == ([], 16.0)
    wrapped(second, _x())
    detail = "another argument of shape [2, 4]"
    assert _found() == [("graph-input-not-written", "graph::replay", detail)]
    assert second.count_nonzero() == 0


def test_an_input_that_is_returned_without_the_tensor_cache_is_reported() -> None:
    wrap = hpu.graphs.wrap_in_hpu_graph_func
    cached = wrap(lambda x: (x + 1, x.view(-1)))
    uncached = wrap(lambda x: (x + 1, x.view(-1)), disable_tensor_cache=True)
    first, second = _x(), _x() * 3
    cached(first.clone())
    assert cached(second)[1].tolist() == [3.0] * 8
    assert _found() == []
    uncached(first)
    assert uncached(second)[1].tolist() == [1.0] * 8
    detail = "a result of shape [8]"
    assert _found() == [("graph-input-returned", "graph::capture", detail)]


FROM_HOST: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "tensor": (
        lambda net, x, other: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device="hpu"),
        "aten::lift_fresh of float32[4]",
    ),
    "to": (
        lambda net, x, other: x + torch.arange(4).to("hpu"),
        "aten::_to_copy of int64[4]",
    ),
    "copy": (
        lambda net, x, other: x + torch.empty(4, device="hpu").copy_(torch.ones(4)),
        "aten::copy_ of float32[4]",
    ),
}


@pytest.mark.parametrize("name", FROM_HOST)
def test_values_of_the_host_are_those_of_the_capture(name: str) -> None:
    use, detail = FROM_HOST[name]
    net = _wrapped(use)
    first = net(_x()).clone()
    assert torch.equal(net(_x()), first)
    assert _found() == [("graph-host-values", "graph::capture", detail)]
    place = findings()[0]
    assert (place.file, place.line) == (__file__, use.__code__.co_firstlineno)


RANDOM: dict[str, Callable[[], object]] = {
    "random": random.random,
    "torch.rand on the CPU": lambda: torch.rand(2),
    "numpy.random": np.random.rand,
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_of_the_host_are_reported(name: str) -> None:
    _wrapped(lambda net, x, other: RANDOM[name]() is not None and x)(_x())
    assert _found() == [("graph-host-random", "graph::capture", name)]


def _count_on_device(net: Net, x: torch.Tensor, other: Any) -> torch.Tensor:
    net.mask.add_(1)
    return x


ADVICE: dict[str, Callable[..., torch.Tensor]] = {
    "keep the state in a tensor that is updated in place": _count_on_device,
    "make the tensor on the device": lambda net, x, other: x + torch.arange(4, device="hpu"),
    "give it as an argument": lambda net, x, other: x + other,
    "draw on the device": lambda net, x, other: x + torch.rand(4, device="hpu"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_the_rules_of_graphs_advise_is_not_reported(name: str) -> None:
    net = _wrapped(ADVICE[name])
    for _ in range(3):
        net(_x(), torch.ones(4, device="hpu"))
    assert _found() == []


def test_a_graph_that_is_captured_again_sees_the_change() -> None:
    net = _wrapped()
    first = net(_x()).clone()
    net.scale = 4.0
    net.clear_cache()
    torch.testing.assert_close(net(_x()), 2 * first)
    assert _found() == []


def test_without_the_tensor_cache_other_arguments_are_written() -> None:
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(
        lambda cache, x: cache.add_(x).sum(), disable_tensor_cache=True
    )
    for number in range(3):
        cache = torch.full((2, 4), float(number), device="hpu")
        wrapped(cache, _x())
        assert cache.sum().item() == 8 * (number + 1)
    assert _found() == []


def test_a_copy_of_an_input_is_returned_without_the_tensor_cache() -> None:
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(
        lambda x: (x + 1, x.clone()), disable_tensor_cache=True
    )
    wrapped(_x())
    assert wrapped(_x() * 3)[1].tolist() == [[3.0] * 4] * 2
    assert _found() == []


def test_rules_may_raise() -> None:
    net = _wrapped()
    net(_x())
    net.scale = 3.0
    rules.set_mode("error")
    with pytest.raises(GaudiRuleError, match=r"Net\.scale was 2\.0 at the capture and is 3\.0"):
        net(_x())


def test_nothing_is_looked_at_while_the_rules_are_off() -> None:
    rules.set_mode("off")
    net = _wrapped(_count)
    net(_x())
    net.scale = 3.0
    net(_x())
    assert _found() == []


class Layer:
    def __init__(self) -> None:
        self.keys: Any = None

    def update(self, new: torch.Tensor) -> torch.Tensor:
        self.keys = new if self.keys is None else torch.cat([self.keys, new])
        return self.keys


class SlottedLayer:
    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys = torch.zeros(2, 4, device="hpu")


class Cache:
    """As a `DynamicCache`: its layers stand in a list."""

    def __init__(self, kind: type = Layer) -> None:
        self.layers = [kind(), kind()]
        self.by_name = {"first": self.layers[0]}


def _replayed(net: Net, cache: Any, num_calls: int = 3) -> list[str]:
    for _ in range(num_calls):
        net(_x(), cache)
    return [detail for detail in map(str, findings()) if "graph-stale-value" in detail]


def test_a_cache_that_grows_while_it_is_captured_is_reported_at_its_replay() -> None:
    net = _wrapped(lambda s, x, cache: x + cache.layers[1].update(x).sum(0))
    net(_x(), cache := Cache())
    assert not findings()
    details = _replayed(net, cache)
    assert "Cache.layers[1].keys is changed by what was captured, and by no replay" in details[0]


@pytest.mark.parametrize("kind", [Layer, SlottedLayer])
def test_a_cache_that_others_change_between_replays_is_reported(kind: type) -> None:
    net = _wrapped(lambda s, x, cache: x if cache.layers[0].keys is None else -x)
    cache = Cache(kind)
    net(_x(), cache)
    cache.layers[0].keys = torch.ones(2, 4, device="hpu")
    assert "Cache.layers[0].keys is another than at the capture" in _replayed(net, cache)[0]


def test_a_cache_that_is_updated_in_place_is_not_reported() -> None:
    net = _wrapped(lambda s, x, cache: cache.layers[0].keys.add_(x))
    cache = Cache(SlottedLayer)
    assert not _replayed(net, cache)
    assert cache.layers[0].keys[0, 0] != 0


class Adapted(Net):
    """As a layer of peft: scales in a dict, what is merged in a list behind a property."""

    def __init__(self) -> None:
        super().__init__(lambda s, x, o: x)
        self.scaling = {"default": 2.0}
        self.merged_adapters: list[str] = []
        self.log: list[int] = []

    @property
    def merged(self) -> bool:
        return bool(self.merged_adapters)

    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        return self.layer(x) if self.merged else self.layer(x) * self.scaling["default"]

    def note(self) -> None:
        self.log.append(1)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda net: net.scaling.update(default=3.0), "Adapted.scaling['default']"),
        (lambda net: net.merged_adapters.append("default"), "len(Adapted.merged_adapters)"),
    ],
)
def test_what_lies_in_containers_of_a_module_is_looked_at(change: Any, path: str) -> None:
    net: Any = hpu.wrap_in_hpu_graph(Adapted().to("hpu").eval())
    assert not _replayed(net, None)
    net.note()  # not of its forward
    assert not _replayed(net, None)
    change(net)
    assert f"{path} is another than at the capture" in _replayed(net, None)[0]
