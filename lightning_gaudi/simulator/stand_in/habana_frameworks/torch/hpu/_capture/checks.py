"""Reports misuse of captured graphs that a card does not notice, as it goes on with its capture.

Nothing is checked while LIGHTNING_GAUDI_SIMULATE_RULES is "off".
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lightning_gaudi.simulator.rules import Rule, report, rows_graphs
from lightning_gaudi.simulator.rules.report import is_reported

from .leaves import (
    CONTAINERS,
    SCALARS,
    leaves_of,
    leaves_of_arguments,
    modules_of,
    names_of_forward,
    print_of,
)

if TYPE_CHECKING:
    from .graph import HPUGraph

_MAX_NAMED = 3
_OF_TORCH = frozenset(torch.nn.Module().__dict__) - {"training"}
"""The attributes that every module has, without its mode."""


@dataclass
class _Owner:
    """A namespace of a module, from which its forward may read."""

    label: str
    """The name that a user would give it."""
    values: dict[str, Any]
    kind: type
    """The module's class."""

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields names and values that a user has put there."""
        return ((k, v) for k, v in list(self.values.items()) if k not in _OF_TORCH)

    def is_read(self, name: str) -> bool:
        """Returns whether the name occurs in the module's forward."""
        return name in names_of_forward(self.kind)

    def name_of(self, name: str) -> str:
        """Returns the name that a user would give a value."""
        return f"{self.label}.{name}"


@dataclass
class _Seen:
    """A value as it was at the capture."""

    owner: _Owner
    name: str
    value: Any
    """A scalar or tuple; for a tensor its address, for a container its type and length."""

    def __str__(self) -> str:
        return self.owner.name_of(self.name)


class Watch:
    """Remembers what a captured forward read besides its tensor arguments, and checks it later."""

    def __init__(self, module: torch.nn.Module | None, inputs: Any) -> None:
        modules = [*([] if module is None else [module]), *modules_of(inputs)]
        self._modules = [owner for each in modules for owner in _owners_of_module(each)]
        self._before = list(self._look())
        self._random = _random_states()
        self._inputs = inputs
        self._in_arguments = leaves_of_arguments(inputs)
        self._changed: list[str] = []
        self._in_modules: list[tuple[_Owner, str, dict[str, Any]]] = []
        self._after: list[_Seen] = []

    @classmethod
    def begin(cls, module: torch.nn.Module | None, inputs: Any) -> Watch | None:
        """Returns a watch of a module and arguments before a capture; None if rules are off."""
        return cls(module, inputs) if is_reported() else None

    def end(self, graph: HPUGraph) -> None:
        """Reports effects of the captured Python, and remembers what the graph relies on."""
        inputs, self._inputs = self._inputs, None
        self._changed = [
            f"{path} is changed by what was captured, and by no replay"
            for path in _differences(self._in_arguments, leaves_of_arguments(inputs))
        ]
        changes = [(seen, print_of(seen.owner.values.get(seen.name))) for seen in self._before]
        changed = [
            f"{seen} changed from {_say(seen.value)} to {_say(now)}"
            for seen, now in changes
            if now != seen.value
        ]
        states = _random_states()
        drawn = [name for name, state in self._random.items() if states[name] != state]
        _report(rows_graphs.PYTHON_STATE, "graph::capture", changed)
        _report(rows_graphs.HOST_RANDOM, "graph::capture", drawn)
        self._before, self._random = [], {}
        read = graph.reads()
        self._after = [seen for owner in self._modules for seen in _relied_on(owner, read)]
        self._in_modules = [
            (owner, name, leaves_of(owner.name_of(name), value))
            for owner in self._modules
            for name, value in owner.items()
            if owner.is_read(name) and isinstance(value, CONTAINERS)
        ]
        self._modules = []

    def check(self, inputs: Any) -> None:
        """Reports, before a replay, what has another value than at the capture."""
        if not is_reported():
            return
        stale = [_difference(seen, seen.owner.values) for seen in self._after]
        # Arguments that the captured code itself has changed are reported instead of compared: no
        # replay changes them.
        stale += self._changed or [
            f"{path} is another than at the capture"
            for path in _differences(self._in_arguments, leaves_of_arguments(inputs))
        ]
        for owner, name, before in self._in_modules:
            now = leaves_of(owner.name_of(name), owner.values.get(name))
            stale += [
                f"{path} is another than at the capture" for path in _differences(before, now)
            ]
        _report(rows_graphs.STALE, "graph::replay", [detail for detail in stale if detail])

    def _look(self) -> Iterator[_Seen]:
        for owner in self._modules:
            for name, value in owner.items():
                yield _Seen(owner, name, print_of(value))


def report_host_values(operator: str, tensor: torch.Tensor) -> None:
    """Reports that values of the host were copied to the card during a capture."""
    kind = str(tensor.dtype).removeprefix("torch.")
    detail = f"{operator} of {kind}{list(tensor.shape)}"
    report(rows_graphs.HOST_VALUES, "graph::capture", detail)


def report_writes(
    graph: HPUGraph, captured: Iterable[torch.Tensor], given: Iterable[torch.Tensor]
) -> None:
    """Reports new inputs that a replay does not update in place, as the capture did with its own.

    Args:
        graph: The graph.
        captured: The inputs of the capture, which the graph updates.
        given: The inputs of the replay, in the same order.
    """
    if not (writes := graph.writes()):
        return
    details = [
        f"another argument of shape {list(new.shape)}"
        for old, new in zip(captured, given, strict=False)
        if old is not new and old.untyped_storage()._cdata in writes
    ]
    _report(rows_graphs.INPUT_NOT_WRITTEN, "graph::replay", details)


def report_passed_through(given: Iterable[torch.Tensor], results: Iterable[torch.Tensor]) -> None:
    """Reports results that lie in the memory of inputs, which the graph does not keep.

    Args:
        given: Inputs that replays read where they are.
        results: The results of the capture.
    """
    addresses = {tensor.untyped_storage()._cdata for tensor in given}
    details = [
        f"a result of shape {list(result.shape)}"
        for result in results
        if result.untyped_storage()._cdata in addresses
    ]
    _report(rows_graphs.INPUT_RETURNED, "graph::capture", details)


def own_gradients(parameters: tuple[torch.Tensor, ...], static: tuple[Any, ...]) -> None:
    """Copies gradients of parameters that lie in the memory of a graph, and reports them.

    Args:
        parameters: The parameters.
        static: The graph's gradient for each, or None.
    """
    for parameter, gradient in zip(parameters, static, strict=True):
        held = parameter.grad
        if held is None or gradient is None or held.data_ptr() != gradient.data_ptr():
            continue
        parameter.grad = held.detach().clone()
        detail = f"the gradient of a parameter {list(parameter.shape)}"
        report(rows_graphs.SHARED_GRADIENTS, "graph::replay", detail)


def _relied_on(owner: _Owner, read: set[int]) -> Iterator[_Seen]:
    for name, value in owner.items():
        if isinstance(value, torch.Tensor):
            if value.untyped_storage()._cdata in read:
                yield _Seen(owner, name, print_of(value))
        elif isinstance(value, SCALARS) and name in _names_in_code(owner.kind):
            yield _Seen(owner, name, value)


def _difference(seen: _Seen, values: dict[str, Any]) -> str:
    """Returns in words how a value differs from that of the capture; "" if it does not."""
    now = values.get(seen.name)
    if isinstance(now, torch.Tensor):
        return (
            "" if print_of(now) == seen.value else f"{seen} is another tensor than at the capture"
        )
    if now is seen.value or now == seen.value:
        return ""
    return f"{seen} was {_say(seen.value)} at the capture and is {_say(now)}"


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the paths of what has changed, of very many only some."""
    paths = [path for path in {**before, **now} if before.get(path) != now.get(path)]
    return paths[:_MAX_NAMED]


def _report(rule: Rule, operator: str, details: list[str]) -> None:
    if details:
        report(rule, operator, "; ".join(details))


def _say(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return "one tensor" if value[0] == "tensor" else f"a {value[0]} of {value[1]}"
    return repr(value)


def _owners_of_module(module: torch.nn.Module) -> Iterator[_Owner]:
    for path, each in module.named_modules():
        label = f"{type(module).__name__}.{path}" if path else type(module).__name__
        for values in (each.__dict__, each._parameters, each._buffers):
            yield _Owner(label, values, type(each))


@functools.cache
def _names_in_code(kind: type) -> frozenset[str]:
    """Returns the names in the methods of a module's class, without its constructor."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base in (torch.nn.Module, object):
            continue
        for name, method in vars(base).items():
            code = getattr(method, "__code__", None)
            if code is not None and name not in ("__init__", "extra_repr", "__repr__"):
                names.update(code.co_names)
    return frozenset(names)


def _random_states() -> dict[str, Any]:
    """Returns the states of the host's generators by name."""
    states = {"random": random.getstate(), "torch.rand on the CPU": bytes(torch.get_rng_state())}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy.random"] = repr(numpy.random.get_state())
    return states
