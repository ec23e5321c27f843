"""Finds models that run operator by operator."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Finding, Weight
from .merging import judged_steps, lines_of
from .record import Line, Record

_TRAINING = "training"
_SOURCE = (
    "Getting Started with PyTorch and Gaudi, torch.compile, "
    "https://docs.habana.ai/en/latest/PyTorch/Getting_Started_with_PyTorch_and_Gaudi/"
    "Getting_Started_with_PyTorch.html"
)
_MIN_LAUNCHES = 16
"""The operators of a step, besides the optimizer's, that make compiling worth a finding."""
_ORDER = ("model", "forward", "backward")


def find(record: Record) -> Iterator[Finding]:
    """Yields the line that launches most operators of the model, if nothing is compiled."""
    judged = judged_steps(record)
    steps = [record.steps[index] for index in judged if index < len(record.steps)]
    if record.is_lazy or not steps or any(step.graph_launches for step in steps):
        return
    lines = _lines(record)
    num_launches = sum(step.launches for step in steps) / len(steps)
    by_models = sum(_a_step(line) for line, _ in lines)
    if lines and by_models >= _MIN_LAUNCHES:
        yield _uncompiled(lines, num_launches, record)


def _lines(record: Record) -> list[tuple[Line, list[int]]]:
    """Returns lines with launches but for the optimizer's, the model's with the most first."""
    found = [
        (line, steps)
        for line, steps in lines_of(record, ("launch",), _TRAINING)
        if line.phase != "optimizer" and steps
    ]
    return sorted(found, key=lambda each: (_ORDER.index(each[0].phase), -_a_step(each[0])))


def _a_step(line: Line) -> float:
    return line.amount / len(line.steps)


def _uncompiled(lines: list[tuple[Line, list[int]]], a_step: float, record: Record) -> Finding:
    line, steps = lines[0]
    of_optimizer = a_step - sum(_a_step(each) for each, _ in lines)
    return Finding(
        rule="uncompiled",
        weight=Weight.LAUNCHES,
        file=line.file,
        line=line.line,
        function=line.function,
        message=f"nothing of a step is compiled: each operator is a launch of its own, "
        f"{a_step:,.0f} a step, {_a_step(line):,.0f} of them here, {of_optimizer:,.0f} of the "
        "optimizer's.",
        fix=_fix(record),
        num_steps=len(steps),
        count=line.count,
        via=line.via,
        source=_SOURCE,
    )


def _fix(record: Record) -> str:
    if record.trainer == "lightning":
        return (
            "Set LIGHTNING_GAUDI_COMPILE=regions, or pass compile='regions' to the HPU strategy. "
            "That is the default: something has switched it off, or keeps torch.compile from it, "
            "as an RNN, LSTM or GRU of torch does."
        )
    if record.trainer == "transformers":
        return "Pass torch_compile=True, torch_compile_backend='hpu_backend' to TrainingArguments."
    return "Wrap the model: torch.compile(model, backend='hpu_backend')."
