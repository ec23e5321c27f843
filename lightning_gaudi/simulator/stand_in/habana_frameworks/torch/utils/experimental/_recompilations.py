"""Logs and reports what modules did that are watched for recompilations."""

from __future__ import annotations

import csv
import inspect
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ..internal import is_lazy
from ._table import table

_TAG = "[DETECT_RECOMPILE_AUTO]"
_STEPS = ("Step", "Recompiling modules", "New in", "New out", "Class", "Location", "Comment")
_COUNTS = ("Module name", "Recompile count")


class Call(NamedTuple):
    """One forward pass of one module."""

    name: str
    step: int
    has_new_input: bool
    has_new_output: bool
    num_graphs: int


class Log:
    """The modules that are watched, and their forward passes in the order in which they ended."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[str, tuple[str, str]] = {}
        self.calls: list[Call] = []
        self.step = 0

    def add_module(self, name: str, module: torch.nn.Module) -> None:
        """Notes a module under its path, with its class and the file of the class."""
        kind = type(module)
        source = inspect.getmodule(kind)
        file = getattr(source, "__file__", None) or kind.__module__
        class_name = f"{kind.__module__}.{kind.__qualname__}"
        self.origins[name] = (class_name, file)
        self.lines.append(f"{_indent(name)}{_TAG} watching {name}: {class_name} ({file})")

    def add_call(self, call: Call, *, ends_step: bool) -> None:
        """Notes a forward pass; that of the whole model ends a step."""
        self.calls.append(call)
        facts = [
            f"step:{call.step}" if ends_step else "",
            "new input" if call.has_new_input else "",
            "new output" if call.has_new_output else "",
            f"num_graphs:{call.num_graphs}",
            "recompiled" if call.num_graphs else "",
        ]
        text = " ".join(fact for fact in facts if fact)
        self.lines.append(f"{_indent(call.name)}{_TAG}[{call.name}] {text}")
        self.step += ends_step


def _indent(name: str) -> str:
    return "  " * name.count("/")


def report(log: Log, stem: str | Path) -> None:
    """Prints which modules recompiled in which step, and how often; writes both as CSV.

    Args:
        log: The log of the watched modules.
        stem: The beginning of the files' names, to which `_1.csv` and `_2.csv` are added.

    Raises:
        RuntimeError: Nothing ran.
    """
    if not log.calls:
        raise RuntimeError("The watched model has not run yet. Call it, then analyse_dynamicity().")
    recompiled = [call for call in log.calls if call.num_graphs]
    if not recompiled and not is_lazy():
        warnings.warn(
            "The simulated HPU counts graphs of lazy mode and of torch.compile, and this is eager "
            "mode without either: nothing was measured. Set PT_HPU_LAZY_MODE=1.",
            stacklevel=2,
        )
    dynamic = {call.name for call in recompiled if not call.has_new_input}
    steps = [
        (
            call.step,
            call.name,
            call.has_new_input,
            call.has_new_output,
            *log.origins[call.name],
            _comment(call, dynamic),
        )
        for call in recompiled
    ]
    _publish(_STEPS, steps, 120, f"{stem}_1.csv")
    _publish(_COUNTS, Counter(c.name for c in recompiled).most_common(), 80, f"{stem}_2.csv")


def _comment(call: Call, dynamic: set[str]) -> str:
    """Returns why a module may have recompiled; `dynamic` has those that did for a known input."""
    if call.has_new_input:
        return "new input"
    output = "new" if call.has_new_output else "known"
    has_child = any(name.startswith(f"{call.name}/") for name in dynamic)
    whose = " of a child" if has_child else ""
    return f"known input; {output} output; perhaps dynamic operators{whose}"


def _publish(
    header: Sequence[str], rows: Sequence[Sequence[object]], max_width: int, file: str
) -> None:
    print(table(header, rows, max_width))
    with Path(file).open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])
