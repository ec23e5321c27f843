"""Misuse of captured graphs that a card does not notice: it goes on with what it captured.

Nothing is looked at while LIGHTNING_GAUDI_SIMULATE_RULES is "off".
"""

from __future__ import annotations

import collections
import functools
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

from lightning_gaudi.simulator.rules import Rule, report, rows_graphs
from lightning_gaudi.simulator.rules.report import is_reported

if TYPE_CHECKING:
    from .graph import HPUGraph

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_OF_TORCH = frozenset(torch.nn.Module().__dict__) - {"training"}
"""What every module has, but for its mode."""


@dataclass
class _Owner:
    """A namespace of which a forward may read: a module's, or an argument's."""

    label: str
    """How a user would call it."""
    values: dict[str, Any]
    names: frozenset[str] | None
    """The names of scalars that its code speaks of; None if they are not known."""

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and values that a user has put there."""
        return ((k, v) for k, v in list(self.values.items()) if k not in _OF_TORCH)

    def name_of(self, name: str) -> str:
        """How a user would call a value."""
        return f"{self.label}.{name}"


@dataclass
class _Seen:
    """A value as the capture saw it."""

    owner: _Owner
    name: str
    value: Any
    """A scalar or tuple; for a tensor its address, for a container its type and length."""

    def __str__(self) -> str:
        return self.owner.name_of(self.name)


class Watch:
    """What a captured forward read outside of its tensor arguments, to see whether it changes."""

    def __init__(self, module: torch.nn.Module | None, inputs: Any) -> None:
        self._modules = list(_owners_of_module(module)) if module is not None else []
        self._arguments = list(_owners_of_arguments(inputs))
        self._before = list(self._look())
        self._random = _random_states()
        self._after: list[_Seen] = []
        self._after_of_arguments: list[list[_Seen]] = []

    @classmethod
    def begin(cls, module: torch.nn.Module | None, inputs: Any) -> Watch | None:
        """Look at a module and arguments before a capture; None if the rules are off."""
        return cls(module, inputs) if is_reported() else None

    def end(self, graph: HPUGraph) -> None:
        """Report what the captured Python did besides, and remember what the graph relies on."""
        changes = [(seen, _print_of(seen.owner.values.get(seen.name))) for seen in self._before]
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
        self._after_of_arguments = [list(_relied_on(owner, read)) for owner in self._arguments]
        self._modules, self._arguments = [], []

    def check(self, inputs: Any) -> None:
        """Report what has another value than at the capture; before a replay."""
        if not is_reported():
            return
        stale = [_difference(seen, seen.owner.values) for seen in self._after]
        if self._after_of_arguments:
            owners = _owners_of_arguments(inputs)
            for all_seen, owner in zip(self._after_of_arguments, owners, strict=False):
                stale += [_difference(seen, owner.values) for seen in all_seen]
        _report(rows_graphs.STALE, "graph::replay", [detail for detail in stale if detail])

    def _look(self) -> Iterator[_Seen]:
        for owner in self._modules + self._arguments:
            for name, value in owner.items():
                yield _Seen(owner, name, _print_of(value))


def report_host_values(operator: str, tensor: torch.Tensor) -> None:
    """Report that values of the host went to the card during a capture."""
    kind = str(tensor.dtype).removeprefix("torch.")
    detail = f"{operator} of {kind}{list(tensor.shape)}"
    report(rows_graphs.HOST_VALUES, "graph::capture", detail)


def report_writes(
    graph: HPUGraph, captured: Iterable[torch.Tensor], given: Iterable[torch.Tensor]
) -> None:
    """Report inputs that a graph would update in place, were they not others than at its capture.

    Args:
        graph: The graph.
        captured: The inputs of its capture, which it updates.
        given: Those of now, in the same order.
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
    """Report results that are memory of inputs which the graph does not keep.

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
    """Give parameters gradients of their own where theirs are the memory of a graph; and report it.

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
            if value.untyped_storage()._cdata in read or _is_input_in(owner, value):
                yield _Seen(owner, name, _print_of(value))
        elif isinstance(value, _SCALARS) and (owner.names is None or name in owner.names):
            yield _Seen(owner, name, value)


def _is_input_in(owner: _Owner, value: torch.Tensor) -> bool:
    """Whether it is a tensor within an argument that the vendor's copy does not look into."""
    return owner.names is None and value.device.type == "hpu"


def _difference(seen: _Seen, values: dict[str, Any]) -> str:
    """How a value is another than at the capture; empty if it is not."""
    now = values.get(seen.name)
    if isinstance(now, torch.Tensor):
        return (
            "" if _print_of(now) == seen.value else f"{seen} is another tensor than at the capture"
        )
    if now is seen.value or now == seen.value:
        return ""
    return f"{seen} was {_say(seen.value)} at the capture and is {_say(now)}"


def _report(rule: Rule, operator: str, details: list[str]) -> None:
    if details:
        report(rule, operator, "; ".join(details))


def _print_of(value: Any) -> Any:
    """What can be compared of a value later; None if nothing can."""
    if isinstance(value, torch.Tensor):
        is_plain = type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        return ("tensor", value.data_ptr() if is_plain else id(value))  # a DTensor has no memory
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, (list, dict, set, collections.deque)):
        return (type(value).__name__, len(value))
    return None


def _say(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return "one tensor" if value[0] == "tensor" else f"a {value[0]} of {value[1]}"
    return repr(value)


def _owners_of_module(module: torch.nn.Module) -> Iterator[_Owner]:
    for path, each in module.named_modules():
        label = f"{type(module).__name__}.{path}" if path else type(module).__name__
        for values in (each.__dict__, each._parameters, each._buffers):
            yield _Owner(label, values, _names_in_code(type(each)))


def _owners_of_arguments(inputs: Any) -> Iterator[_Owner]:
    """Objects among the arguments whose tensors are not copied to a graph."""
    if isinstance(inputs, collections.UserDict):
        yield _Owner(type(inputs).__name__, inputs.data, None)
    elif isinstance(inputs, dict):
        yield from _owners_of_arguments(list(inputs.values()))
    elif isinstance(inputs, (list, tuple)):
        for value in inputs:
            yield from _owners_of_arguments(value)
    elif is_dataclass(inputs) and not isinstance(inputs, type):
        yield from _owners_of_arguments([getattr(inputs, field.name) for field in fields(inputs)])
    elif isinstance(inputs, torch.nn.Module):
        yield from _owners_of_module(inputs)
    elif not isinstance(inputs, (torch.Tensor, type, *_SCALARS)) and hasattr(inputs, "__dict__"):
        yield _Owner(type(inputs).__name__, inputs.__dict__, None)


@functools.cache
def _names_in_code(kind: type) -> frozenset[str]:
    """The names that the methods of a module's class speak of, but for its constructor."""
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
    """The states of the host's generators by name."""
    states = {"random": random.getstate(), "torch.rand on the CPU": bytes(torch.get_rng_state())}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy.random"] = repr(numpy.random.get_state())
    return states
