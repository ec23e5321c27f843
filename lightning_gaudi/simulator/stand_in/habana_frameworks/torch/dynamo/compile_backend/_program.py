"""Turns a traced graph into a program of the extension, which calls operators without Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..._binding import C

_TENSORS = ("List[Tensor]", "List[Optional[Tensor]]")


def compile_program(graph_module: GraphModule) -> Callable[..., Any] | None:
    """Returns a function that computes the graph; None if it is not just operators on fixed sizes.

    Args:
        graph_module: The graph. Its inputs are tensors, and it returns a list or tuple.
    """
    try:
        return _Writer(graph_module.graph.nodes).program.run
    except _UnsupportedError:
        return None


class _UnsupportedError(Exception):
    """The graph has what a program cannot have: a varying size, a control flow, a constant."""


class _Writer:
    """Numbers the values of a graph, and adds a step for each operator."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = [*nodes]
        self._places: dict[Node, int] = {}
        self._num = 0
        # Results that two nodes name. They stay to the end, because the last read of one name may
        # come before that of the other.
        self._shared: set[int] = set()
        self._last_reads = self._find_last_reads()
        *inner, output = self._nodes
        for node in inner:
            if node.op == "placeholder":
                self._check_tensor(node)
                self._places[node] = self._new()
            elif node.op != "call_function":
                raise _UnsupportedError
        steps = [step for node in inner if (step := self._step(node)) is not None]
        (returned,) = output.args
        if not isinstance(returned, (list, tuple)):
            raise _UnsupportedError
        outputs = [-1 if each is None else self._place(each) for each in returned]
        self.program = C.Program(self._num, outputs)
        for step in steps:
            self.program.add(*step)

    def _new(self) -> int:
        self._num += 1
        return self._num - 1

    def _find_last_reads(self) -> dict[Node, list[Node]]:
        """Returns for each node the values that no node reads after it."""
        last: dict[Node, list[Node]] = {}
        seen: set[Node] = set()
        for node in reversed(self._nodes):
            for value in node.all_input_nodes:
                if value not in seen:
                    seen.add(value)
                    last.setdefault(node, []).append(value)
        return last

    def _step(self, node: Node) -> tuple[Any, ...] | None:
        """Returns the arguments of `Program.add`, or None for a node that is no operator."""
        if node.op == "placeholder" or node.target is operator.getitem:
            return None
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise _UnsupportedError
        constants, holes, lists = [], [], []
        for position, value in enumerate(_arguments(node, target)):
            constants.append(value)
            if isinstance(value, Node):
                holes.append((position, self._place(value)))
            elif isinstance(value, (list, tuple)) and any(isinstance(one, Node) for one in value):
                if str(target._schema.arguments[position].type) not in _TENSORS:
                    raise _UnsupportedError
                lists.append((position, [-1 if one is None else self._place(one) for one in value]))
        constants = [None if _has_node(value) else value for value in constants]
        results = self._results(node)
        frees = self._frees(node)
        name, overload = target._schema.name, target._schema.overload_name
        return name, overload, constants, holes, lists, results, frees

    def _results(self, node: Node) -> list[int]:
        """Returns the places of the results; several results are read by `getitem` alone."""
        value = node.meta.get("val")
        if not node.users:
            return []
        if isinstance(value, torch.Tensor):
            self._places[node] = self._new()
            return [self._places[node]]
        if not isinstance(value, (list, tuple)):
            raise _UnsupportedError
        results = [-1] * len(value)
        for user in node.users:
            if user.target is not operator.getitem or not isinstance(user.args[1], int):
                raise _UnsupportedError
            self._check_tensor(user)
            index = user.args[1] % len(value)
            if results[index] < 0:
                results[index] = self._new()
            else:
                self._shared.add(results[index])
            self._places[user] = results[index]
        return results

    def _frees(self, node: Node) -> list[int]:
        read = [self._places[one] for one in self._last_reads.get(node, ()) if one in self._places]
        return [place for place in read if place not in self._shared]

    def _place(self, value: Any) -> int:
        if not isinstance(value, Node) or value not in self._places:
            raise _UnsupportedError
        return self._places[value]

    @staticmethod
    def _check_tensor(node: Node) -> None:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise _UnsupportedError


def _arguments(node: Node, target: torch._ops.OpOverload) -> Sequence[Any]:
    """Returns a value for each argument of the schema."""
    values: list[Any] = [*node.args]
    for argument in target._schema.arguments[len(values) :]:
        if argument.name not in node.kwargs and not argument.has_default_value():
            raise _UnsupportedError
        values.append(node.kwargs.get(argument.name, argument.default_value))
    return values


def _has_node(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_node, value))
    return isinstance(value, Node)
