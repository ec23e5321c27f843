"""Defines a captured graph: the operators that ran, on numbered registers instead of tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lightning_gaudi.simulator import replays

from ..._binding import C


@dataclass(frozen=True)
class Register:
    """Stands for a tensor among the arguments of a step."""

    index: int


@dataclass
class Step:
    """One operator of a captured graph."""

    operator: Any
    """The OpOverload."""
    args: list[Any]
    """The arguments, with a `Register` for each tensor, within lists too."""
    kwargs: dict[str, Any]
    """The arguments that are given by name, likewise."""
    results: list[int | None]
    """The register of each leaf of its result; None for a leaf that is dropped."""
    is_collective: bool = False
    """Whether it is a collective, for which a replay waits."""
    frees: list[int] = field(default_factory=list)
    """The registers that no later step reads."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Position and register of each argument that is a tensor."""
    has_nested: bool = False
    """Whether there are tensors elsewhere: in lists, or given by name."""

    def __post_init__(self) -> None:
        self.holes = [(i, a.index) for i, a in enumerate(self.args) if isinstance(a, Register)]
        others = [a for a in self.args if not isinstance(a, Register)]
        self.has_nested = next(_registers_of((others, self.kwargs)), None) is not None

    def reads(self) -> set[int]:
        """Returns the registers among the arguments."""
        return set(_registers_of((self.args, self.kwargs)))

    def run(self, registers: list[Any]) -> None:
        """Calls the operator on what the registers hold, and puts its results there."""
        args, kwargs = self.args.copy(), self.kwargs
        for position, index in self.holes:
            args[position] = registers[index]
        if self.has_nested:
            args = [_filled(argument, registers) for argument in args]
            kwargs = {name: _filled(value, registers) for name, value in kwargs.items()}
        result = self.operator(*args, **kwargs)
        if self.is_collective:
            _wait(result)
        if isinstance(result, torch.Tensor):
            if self.results[0] is not None:
                registers[self.results[0]] = result
        else:
            self._keep_all(result, registers)
        for index in self.frees:
            registers[index] = None

    def _keep_all(self, result: Any, registers: list[Any]) -> None:
        for index, leaf in zip(self.results, pytree.tree_leaves(result), strict=True):
            if index is not None:
                registers[index] = leaf


def _wait(result: Any) -> None:
    """Waits for a collective."""
    # At once, because what waited for it at the capture may not be in the graph.
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject):
            torch._C._distributed_c10d.Work.unbox(leaf).wait()
        elif isinstance(leaf, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(leaf)


def _registers_of(value: Any) -> Iterator[int]:
    if isinstance(value, Register):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _registers_of(element)
    elif isinstance(value, dict):
        yield from _registers_of(list(value.values()))


def _filled(value: Any, registers: list[Any]) -> Any:
    if isinstance(value, Register):
        return registers[value.index]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(element, registers) for element in value)
    return value


@dataclass
class Kept:
    """Memory that a graph made while it was captured, and that it fills at every replay."""

    register: int
    """The register in which a replay has the new values."""
    storage: torch.UntypedStorage
    """The memory into which they go."""
    is_floating: bool
    """Whether the values are floating-point numbers."""

    def fill(self, registers: list[Any]) -> None:
        """Copies a replay's values into the memory of the capture."""
        new = registers[self.register].untyped_storage()
        assert new.nbytes() == self.storage.nbytes()
        # Not by an operator, which would be counted: a card writes its results there in place.
        ctypes.memmove(self.storage.data_ptr(), new.data_ptr(), new.nbytes())

    def spoil(self) -> None:
        """Makes floating-point numbers NaN, which a dry run has not computed."""
        if self.is_floating and not C.is_dry():
            ctypes.memset(self.storage.data_ptr(), 0xFF, self.storage.nbytes())


@dataclass
class Program:
    """A captured graph, ready to be replayed."""

    steps: list[Step]
    """The operators, in their order."""
    constants: list[Any]
    """The tensor from before the capture in each register, or None."""
    inputs: dict[int, int]
    """The registers of the inputs that the caller marked, by position."""
    kept: list[Kept]
    """Memory that outlives a replay."""
    written: frozenset[int]
    """Addresses of the storages of `constants` that it writes."""
    num_graphs: int
    """The number of recipes that a card would launch, one more than there were `mark_step`s."""

    def __post_init__(self) -> None:
        # From the last step to the first: a register that no later step reads is freed by the step
        # that reads it last. What is kept is never freed.
        seen = {kept.register for kept in self.kept}
        for step in reversed(self.steps):
            used = step.reads() | {index for index in step.results if index is not None}
            step.frees = sorted(used - seen)
            seen |= used

    def run(self, inputs: Sequence[Any] = (), instead: dict[int, Any] | None = None) -> None:
        """Runs the operators again, without the Python that called them at the capture.

        Args:
            inputs: What the caller marked as inputs, in the same order.
            instead: Other tensors, by register.
        """
        if replays.follower is not None:
            replays.follower.note_replay(self)
        registers = self.constants.copy()
        for position, index in self.inputs.items():
            registers[index] = inputs[position]
        for index, tensor in (instead or {}).items():
            registers[index] = tensor
        C.begin_replay()
        try:
            if C.is_dry():
                # Nothing is computed, and the results lie in the memory of the capture, which is
                # allocated already.
                return
            with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
                for step in self.steps:
                    step.run(registers)
                for kept in self.kept:
                    kept.fill(registers)
        finally:
            C.end_replay(self.num_graphs)
