"""Finds what the records of a program say against it, worst first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.rules.rule import Rule, Verdict

from . import finding, launches, shapes
from .finding import Finding, Weight
from .merging import Audit, judged_steps, lines_of
from .record import Line, Record

_TRAINING = "training"
_COPY_SOURCE = "bridge 1.24.0 habana_eager/ops/copy_from.cpp (Pipeline_Or_Direct_Copy)"
_WEIGHTS = {
    Verdict.REFUSED: Weight.FAILS,
    Verdict.UNDEFINED: Weight.FAILS,
    Verdict.ON_CPU: Weight.FALLS_BACK,
    Verdict.DYNAMIC: Weight.COMPILES,
    Verdict.DEMOTED: Weight.NUMBERS,
}
_MASK_WRITE = "mask-write-waits"
_MANY = 8
"""How often a program without steps has to do something for it to count as usual."""
_WAITS = {"copy_to_host": "copy-to-host-waits", "barrier": "barrier-waits"}
"""The rules about reasons of waiting that are no operators."""


def find(audit: Audit) -> list[Finding]:
    """Returns the findings of all ranks; the same finding of several ranks is one.

    Args:
        audit: The records.
    """
    met: dict[tuple[str, str, int, str], list[Finding]] = {}
    for record in audit.records:
        for each in _of_one(record):
            found = dataclasses.replace(each, ranks=(record.rank,))
            met.setdefault(each.place, []).append(found)
    merged = [_as_one(same) for same in met.values()]
    # A line that no judged step has met costs something once, or now and then: it comes last. But
    # what a card refuses ends the run wherever it is.
    has_steps = any(record.steps for record in audit.records)
    return sorted(
        merged,
        key=lambda each: (
            has_steps and not each.num_steps and each.weight is not Weight.FAILS,
            -each.weight,
            -each.num_steps,
            -each.count,
        ),
    )


def _as_one(same: list[Finding]) -> Finding:
    return dataclasses.replace(
        same[0],
        count=sum(each.count for each in same),
        num_steps=max(each.num_steps for each in same),
        ranks=tuple(sorted({rank for each in same for rank in each.ranks})),
    )


def _of_one(record: Record) -> Iterator[Finding]:
    yield from _rules(record)
    yield from _waits(record)
    yield from _blocking_copies(record)
    yield from shapes.find(record)
    yield from launches.find(record)


def _rules(record: Record) -> Iterator[Finding]:
    """Yields the rules of the card's that were met, in whichever stage."""
    judged = judged_steps(record)
    for line in record.lines:
        if line.kind != "rule":
            continue
        rule = table.find(line.what)
        met = next((each for each in line.details if each != "process::fork"), "")
        message = f"a Gaudi {rule.what}{f' ({met})' if met else ''}."
        steps = [step for step in line.steps if step in judged]
        weight = _WEIGHTS.get(rule.verdict, Weight.NUMBERS)
        yield _finding(line, steps, weight, rule, message)


def _waits(record: Record) -> Iterator[Finding]:
    """Yields lines that make the host wait in at least half of the steps."""
    for line, steps in lines_of(record, ("host_sync",), _TRAINING):
        if line.what == "cpu_fallback" or not _is_usual(line, steps, record):
            continue
        rule = _rule_of_waiting(line.what)
        # The simulator counts a wait for every write by a mask.
        if rule is not None and rule.key == _MASK_WRITE and _writes_masks_freely(record):
            continue
        # `_rules` has yielded this line already.
        if _is_told(line, record):
            continue
        if rule is None:
            message, fix = f"the host waits in {line.what}.", "Leave it out of the training step."
            yield _own(line, steps, "host-waits", Weight.WAITS, message, fix)
        else:
            yield _finding(line, steps, Weight.WAITS, rule, f"a Gaudi {rule.what}.")


def _is_told(line: Line, record: Record) -> bool:
    """Returns whether the rule about an operator that waits was met at the same line."""
    return any(
        each.kind == "rule"
        and (each.file, each.line, each.via) == (line.file, line.line, line.via)
        and line.what in table.find(each.what).operators
        for each in record.lines
    )


def _writes_masks_freely(record: Record) -> bool:
    """Returns whether this release writes by masks without a wait, in eager mode."""
    return not record.is_lazy and record.release.startswith("1.24")


def _rule_of_waiting(reason: str) -> Rule | None:
    if reason in _WAITS:
        return table.find(_WAITS[reason])
    # Rows that are dynamic come second: the device has reported those itself where they were met,
    # and `_is_told` then leaves the line out.
    for verdict in (Verdict.WAITS, Verdict.DYNAMIC):
        for rule in table.RULES:
            if rule.verdict is verdict and reason in rule.operators:
                return rule
    return table.find("value-on-host") if "::" in reason else None


def _blocking_copies(record: Record) -> Iterator[Finding]:
    for line, steps in lines_of(record, ("transfer",), _TRAINING):
        if "blocking" not in line.details or not _is_usual(line, steps, record):
            continue
        num_bytes = round(line.amount / line.count)
        yield _own(
            line,
            steps,
            "copy-to-card-blocks",
            Weight.WAITS,
            f"the host waits until all that it has given to the card is under way, and copies "
            f"{num_bytes:,} bytes.",
            "Copy with non_blocking=True, or make the tensor on the card: device=x.device.",
            _COPY_SOURCE,
        )


def _is_usual(line: Line, steps: list[int], record: Record) -> bool:
    """Returns whether a line was met in at least half of the judged steps.

    Without any step it has to be met `_MANY` times.
    """
    if not record.steps:
        return line.count >= _MANY
    return 2 * len(steps) >= max(len(judged_steps(record)), 1)


def _finding(line: Line, steps: list[int], weight: Weight, rule: Rule, message: str) -> Finding:
    return _own(line, steps, rule.key, weight, message, rule.instead, rule.source)


def _own(
    line: Line,
    steps: list[int],
    key: str,
    weight: Weight,
    message: str,
    fix: str,
    source: str = "",
) -> Finding:
    return Finding(
        rule=key,
        weight=weight,
        file=line.file,
        line=line.line,
        function=line.function,
        message=message,
        fix=finding.fix(key, line.via, fix),
        num_steps=len(steps),
        count=line.count,
        via=line.via,
        phase=line.phase,
        source=source,
    )
