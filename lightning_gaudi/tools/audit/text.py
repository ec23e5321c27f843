"""Renders the report for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_gaudi.untrusted import hide_words, printable

from . import formatting
from .finding import Finding
from .line_totals import TITLES, recompilations, totals
from .merging import Audit, judged_steps
from .record import WARM_UP, Record
from .shapes import num_recompilations

SCHEMA = 1
"""The version of the JSON report, which grows if a name goes or gets another meaning."""
_NUM_LINES = 12
_NUM_CAUSES = 6
_LINE_TITLES = {name: TITLES[name] for name in list(TITLES)[:4]}
_COLUMNS = (
    ("launches", "launches"),
    ("graph_launches", "  of them graphs"),
    ("compilations", "graphs compiled"),
    ("recompilations", "  of them again"),
    ("host_syncs", "host syncs"),
    ("host_to_device_bytes", "bytes to the card"),
    ("device_to_host_bytes", "bytes to the host"),
    ("collectives", "collectives"),
    ("collective_bytes", "bytes in them"),
)
_MAX_CHARS = 1_000_000


def render(audit: Audit, found: Sequence[Finding]) -> str:
    """Returns the whole report.

    Args:
        audit: What was noted.
        found: What is said against it, worst first.
    """
    lines = ["", f"lightning-gaudi: audit of {formatting.command(audit)}"]
    if audit.status:
        lines.append(f"It failed: the command exited with {audit.status}, see above.")
    if missing := audit.missing_ranks:
        ranks = ", ".join(map(str, missing))
        lines.append(f"No record of rank {ranks}: it was killed, or it did not end with the rest.")
    if audit.records:
        lines += [formatting.headline(audit), ""]
        lines += _findings(found, len(judged_steps(audit.first)), len(audit.records))
        lines += ["", *_steps(audit.first), *_lines(audit.first), *_recompilations(audit.first)]
        lines += [*_memory(audit), *_shapes(audit), *_collectives(audit)]
    return printable("\n".join(lines), max_chars=_MAX_CHARS, lines=True) + "\n"


def _findings(found: Sequence[Finding], num_judged: int, num_ranks: int) -> Iterator[str]:
    if not found:
        yield "Nothing was found."
        return
    yield f"{len(found)} finding{'s' if len(found) > 1 else ''}, worst first:"
    for number, each in enumerate(found, 1):
        yield ""
        yield f"{number:2}. {formatting.short(each.file)}:{each.line}  [{each.rule}]"
        if code := formatting.source_line(each):
            yield f"      {code}"
        via = f" (in {where})" if (where := formatting.inside(each)) else ""
        ranks = f", ranks {', '.join(map(str, each.ranks))}" if num_ranks > 1 else ""
        yield from _wrap(f"{_often(each, num_judged)}{ranks}: {each.message}{via}")
        if each.fix:
            yield from _wrap(f"Instead: {each.fix}")


def _often(finding: Finding, num_judged: int) -> str:
    often = formatting.frequency(finding, num_judged)
    return often[0].upper() + often[1:]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        formatting.WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
    )


def _steps(record: Record) -> Iterator[str]:
    judged = [record.steps[index] for index in judged_steps(record) if index < len(record.steps)]
    judged = judged or record.steps
    if not judged:
        return
    yield f"{'a step (rank 0, training alone)':32}{'first':>12}{'median':>12}{'max':>12}"
    for name, title in _COLUMNS:
        values = [getattr(step, name) for step in judged]
        first = getattr(record.steps[0], name)
        if first or any(values):
            figures = (first, statistics.median(values), max(values))
            yield f"  {title:30}" + "".join(f"{figure:>12,.0f}" for figure in figures)


def _lines(record: Record) -> Iterator[str]:
    found = totals(record)
    if not found:
        return
    yield ""
    yield f"{'by line, all steps':38}" + "".join(f"{title:>15}" for title in _LINE_TITLES.values())
    for each in found[:_NUM_LINES]:
        figures = (getattr(each, name) for name in _LINE_TITLES)
        cells = (f"{n:,}" if n else "" for n in figures)
        yield f"  {formatting.label(each.file, each.line):36}" + "".join(f"{n:>15}" for n in cells)
    if (left_out := len(found) - _NUM_LINES) > 0:
        yield f"  and {left_out} more"


def _recompilations(record: Record) -> Iterator[str]:
    causes = list(recompilations(record))
    if causes:
        yield ""
        yield "Graphs compiled again:"
    shown = causes[:_NUM_CAUSES]
    for line, cause, count in shown:
        times = f", {count} times" if count > 1 else ""
        yield f"  {formatting.label(line.file, line.line)}: {cause}{times}"
    left_out = num_recompilations(record) - sum(count for *_, count in shown)
    if causes and left_out > 0:
        yield f"  and {left_out} more"


def _memory(audit: Audit) -> Iterator[str]:
    record = audit.first
    yield ""
    peak, limit = formatting.size(record.peak_bytes), formatting.size(record.limit_bytes)
    yield f"Memory: at most {peak} of {limit} in use at a time"
    for name, num_bytes in record.memory.items():
        if num_bytes:
            yield f"  {name:30}{formatting.size(num_bytes):>14}"


def _shapes(audit: Audit) -> Iterator[str]:
    for loader in audit.first.loaders:
        yield ""
        yield (
            f"Loader of {loader.name}, "
            f"{formatting.short(loader.file)}:{loader.line}, {loader.stage}: "
            f"{len(loader.batches)} batches of {len(loader.shapes)} "
            f"shape{'s' if len(loader.shapes) > 1 else ''}"
        )
        for number, count in Counter(loader.batches).most_common(6):
            shown = ", ".join(f"{name} {sizes}" for name, sizes in loader.shapes[number].items())
            yield f"  {count:5} x {shown}"[: formatting.WIDTH]
        yield from (f"  {line}" for line in formatting.advice(loader))


def _collectives(audit: Audit) -> Iterator[str]:
    calls = formatting.collectives(audit.first)
    if calls:
        yield ""
        yield f"{'Collectives of rank 0':32}{'calls':>12}{'bytes':>16}"
    for name, (count, num_bytes) in calls.items():
        yield f"  {name:30}{count:>12,}{num_bytes:>16,}"


def to_json(audit: Audit, found: Sequence[Finding]) -> str:
    """Returns the report for programs: findings, and each rank's steps, lines, loaders, memory."""
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "command": hide_words(audit.command),
        "program_status": audit.status,
        "num_steps": audit.num_steps,
        "num_warm_up_steps": WARM_UP,
        "findings": [_plain(each) for each in found],
        "ranks": [dataclasses.asdict(record) for record in audit.records],
    }
    return json.dumps(values, indent=1) + "\n"


def _plain(finding: Finding) -> dict[str, Any]:
    values = dataclasses.asdict(finding)
    return {
        **values,
        "weight": finding.weight.name.lower(),
        "code": formatting.source_line(finding),
    }
