"""Renders the report as one page of HTML that needs nothing else: no network, no scripts."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lightning_gaudi.report import html, svg

from . import formatting, line_totals
from .finding import Finding, Weight
from .merging import Audit, judged_steps
from .record import WARM_UP, Loader, Record

_NUM_LINES = 40
_NUM_SHAPES = 12
_CODE_LENGTH = 48


def render(audit: Audit, found: Sequence[Finding]) -> str:
    """Returns the whole page.

    Args:
        audit: What was noted.
        found: What is said against it, worst first.
    """
    command, record = formatting.command(audit), audit.first if audit.records else None
    return html.render(
        Path(__file__).with_name("page.html"),
        title=f"Audit of {command}",
        command=command,
        status=audit.status,
        audit=audit,
        found=found,
        num_ranks=len(audit.records),
        record=record,
        shown=formatting,
        weight=lambda each: Weight(each.weight).name.lower(),
        number=_number,
        titles=line_totals.TITLES,
        **({} if record is None else _values(record)),
    )


def _values(record: Record) -> dict[str, Any]:
    """Returns what the template shows of the first rank."""
    found = line_totals.totals(record)[:_NUM_LINES]
    codes = (linecache.getline(each.file, each.line).strip() for each in found)
    parts = {name: size for name, size in record.memory.items() if size}
    sizes = {name: formatting.size(size) for name, size in parts.items()}
    return {
        "num_judged": len(judged_steps(record)),
        "steps": [*_steps(record)],
        "lines": [(each, code[:_CODE_LENGTH]) for each, code in zip(found, codes, strict=True)],
        "causes": [*line_totals.recompilations(record)],
        "memory": svg.bars(parts, sizes, "Memory by category"),
        "loaders": [(each, _shapes(each), _lengths(each)) for each in record.loaders],
        "collectives": formatting.collectives(record),
    }


def _number(value: int) -> Markup:
    """Returns a cell of a table, empty for 0."""
    return Markup(f'<td class="n">{value:,}</td>' if value else "<td></td>")


def _steps(record: Record) -> Iterator[tuple[str, Markup]]:
    def of(name: str) -> Sequence[int]:
        return formatting.step_values(record, name)

    def without(name: str, part: str) -> Sequence[int]:
        return [total - of for total, of in zip(of(name), of(part), strict=True)]

    pictures: Mapping[str, Mapping[str, Sequence[int]]] = {
        "Launches": {
            "operators": without("launches", "graph_launches"),
            "graphs": of("graph_launches"),
        },
        "Graphs compiled": {
            "new": without("compilations", "recompilations"),
            "again, for other shapes": of("recompilations"),
        },
        "Host syncs": {"host syncs": of("host_syncs")},
        "Bytes copied": {
            "to the card": of("host_to_device_bytes"),
            "to the host": of("device_to_host_bytes"),
        },
        "Bytes in collectives": {"bytes": of("collective_bytes")},
    }
    for title, parts in pictures.items():
        if parts := {name: values for name, values in parts.items() if any(values)}:
            yield title, svg.bars_by_step(parts, WARM_UP, f"{title} by step")


def _shapes(loader: Loader) -> Markup:
    values: dict[str, int] = {}
    for number, count in Counter(loader.batches).most_common(_NUM_SHAPES):
        name, sizes = next(iter(loader.shapes[number].items()))
        label = f"{name} {sizes}"
        values[label] = values.get(label, 0) + count
    shown = {name: f"{count} batch{'es' if count > 1 else ''}" for name, count in values.items()}
    return svg.bars(values, shown, "Batches by shape")


def _lengths(loader: Loader) -> Markup:
    """Returns the lengths of the samples, if they differ, in about ten bins of equal width."""
    if len(loader.lengths) < 2:
        return Markup()
    width = max(1, -(-max(loader.lengths) // 10))
    bins: Counter[int] = Counter()
    for length, count in loader.lengths.items():
        bins[(length - 1) // width] += count
    values = {f"{b * width + 1} to {(b + 1) * width}": bins[b] for b in sorted(bins)}
    return svg.bars(values, {name: f"{count:,}" for name, count in values.items()}, "Lengths")
