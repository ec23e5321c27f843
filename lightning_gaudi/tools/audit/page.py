"""The report as one page of HTML that needs nothing else: no network, no scripts."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from . import formatting, line_totals, plots
from .finding import Finding, Weight
from .merging import Audit, judged_steps
from .record import WARM_UP, Loader, Record

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1a202c}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
code,pre{font:13px/1.5 ui-monospace,monospace}
pre{background:#f7fafc;padding:.4rem .6rem;overflow-x:auto;margin:.4rem 0}
.finding{border-left:5px solid #b7791f;padding:.1rem 0 .1rem .9rem;margin:1.1rem 0}
.fails,.compiles{border-color:#c53030}.falls_back,.launches{border-color:#c05621}
.rule{color:#4a5568;font-size:.85em}.quiet{color:#4a5568}.clean{border-color:#2f855a}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;fill:#2d3748}
table{border-collapse:collapse}td code{white-space:nowrap}
td,th{padding:.15rem .8rem .15rem 0;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.legend{margin:.1rem 0}.key{margin-right:1.2rem}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
"""
_NUM_LINES = 40
_NUM_SHAPES = 12
_CODE_LENGTH = 48


def render(audit: Audit, found: Sequence[Finding]) -> str:
    """Returns the whole page.

    Args:
        audit: What was noted.
        found: What is said against it, worst first.
    """
    command = escape(formatting.command(audit))
    body = [f"<h1>Audit</h1><pre>{command}</pre>"]
    if audit.status:
        body.append(f"<p><b>The command exited with {audit.status}.</b></p>")
    if audit.records:
        body.append(f'<p class="quiet">{escape(formatting.headline(audit))}</p>')
        body += [_findings(audit, found), *_steps(audit.first), _lines(audit.first)]
        body += [_memory(audit.first), *map(_loader, audit.first.loaders), _collectives(audit)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Audit of {command}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _findings(audit: Audit, found: Sequence[Finding]) -> str:
    if not found:
        return '<div class="finding clean"><p>Nothing was found.</p></div>'
    num_judged = len(judged_steps(audit.first))
    parts = [f"<h2>{len(found)} finding{'s' if len(found) > 1 else ''}, worst first</h2>"]
    parts += [_finding(each, num_judged, len(audit.records)) for each in found]
    return "".join(parts)


def _finding(finding: Finding, num_judged: int, num_ranks: int) -> str:
    code = formatting.source_line(finding)
    ranks = f", ranks {', '.join(map(str, finding.ranks))}" if num_ranks > 1 else ""
    via = f" In <code>{escape(where)}</code>." if (where := formatting.inside(finding)) else ""
    source = f'<br><span class="rule">{escape(finding.source)}</span>' if finding.source else ""
    return (
        f'<div class="finding {Weight(finding.weight).name.lower()}">'
        f"<b><code>{escape(formatting.short(finding.file))}:{finding.line}</code></b> "
        f'<span class="rule">{escape(finding.rule)}, '
        f"{escape(formatting.frequency(finding, num_judged))}{ranks}</span>"
        f"{f'<pre>{escape(code)}</pre>' if code else ''}"
        f"<p>{escape(finding.message[:1].upper() + finding.message[1:])}{via}<br>"
        f"<b>Instead:</b> {escape(finding.fix)}{source}</p></div>"
    )


def _steps(record: Record) -> Iterator[str]:
    if not record.steps:
        return
    yield f"<h2>Steps of rank {record.rank}</h2>"
    launches, graphs = (formatting.step_values(record, n) for n in ("launches", "graph_launches"))
    single = [total - of for total, of in zip(launches, graphs, strict=True)]
    compiled, again = (
        formatting.step_values(record, n) for n in ("compilations", "recompilations")
    )
    first = [total - of for total, of in zip(compiled, again, strict=True)]
    pictures: dict[str, dict[str, list[int]]] = {
        "Launches": {"operators": single, "graphs": graphs},
        "Graphs compiled": {"new": first, "again, for other shapes": again},
        "Host syncs": {"host syncs": formatting.step_values(record, "host_syncs")},
        "Bytes copied": {
            "to the card": formatting.step_values(record, "host_to_device_bytes"),
            "to the host": formatting.step_values(record, "device_to_host_bytes"),
        },
        "Bytes in collectives": {"bytes": formatting.step_values(record, "collective_bytes")},
    }
    for title, parts in pictures.items():
        if any(map(any, parts.values())):
            parts = {name: values for name, values in parts.items() if any(values)}
            yield f"<h3>{title}</h3>{plots.bars_by_step(parts, WARM_UP, f'{title} by step')}"
    yield '<p class="quiet">Shaded: the first steps, which set up and are not judged.</p>'


def _lines(record: Record) -> str:
    """Returns what each line does, and its code."""
    found = line_totals.totals(record)[:_NUM_LINES]
    if not found:
        return ""
    head = "".join(f'<th class="n">{title}</th>' for title in line_totals.TITLES.values())
    rows = "".join(_row(each) for each in found)
    causes = "".join(
        f"<tr><td><code>{escape(formatting.label(line.file, line.line))}</code></td>"
        f'<td>{escape(cause)}</td><td class="n">{count:,}</td></tr>'
        for line, cause, count in line_totals.recompilations(record)
    )
    again = f"<h3>Graphs compiled again</h3><table>{causes}</table>" if causes else ""
    return (
        f"<h2>By line, all steps</h2><table><tr><th>line</th>{head}<th></th></tr>{rows}</table>"
        f"{again}"
    )


def _row(each: line_totals.LineTotals) -> str:
    figures = (getattr(each, name) for name in line_totals.TITLES)
    cells = "".join(f'<td class="n">{n:,}</td>' if n else "<td></td>" for n in figures)
    code = linecache.getline(each.file, each.line).strip()
    return (
        f"<tr><td><code>{escape(formatting.label(each.file, each.line))}</code></td>{cells}"
        f"<td><code>{escape(code[:_CODE_LENGTH])}</code></td></tr>"
    )


def _memory(record: Record) -> str:
    parts = {name: size for name, size in record.memory.items() if size}
    shown = {name: formatting.size(size) for name, size in parts.items()}
    return (
        f"<h2>Memory at its peak</h2><p>At most {formatting.size(record.peak_bytes)} of "
        f"{formatting.size(record.limit_bytes)} were in use at a time.</p>"
        f"{plots.bars(parts, shown, 'Memory by category')}"
    )


def _loader(loader: Loader) -> str:
    counted = Counter(loader.batches).most_common(_NUM_SHAPES)
    values: dict[str, int] = {}
    for number, count in counted:
        name, sizes = next(iter(loader.shapes[number].items()))
        label = f"{name} {sizes}"
        values[label] = values.get(label, 0) + count
    shown = {name: f"{count} batch{'es' if count > 1 else ''}" for name, count in values.items()}
    notes = "".join(f"<br>{escape(line)}" for line in formatting.advice(loader))
    parts = [
        f"<h2>Shapes of {escape(loader.name)}, {escape(loader.stage)}</h2>"
        f"<p>{len(loader.batches)} batches of {len(loader.shapes)} shapes, made at "
        f"<code>{escape(formatting.short(loader.file))}:{loader.line}</code> by "
        f"<code>{escape(loader.collate)}</code>{notes}</p>",
        plots.bars(values, shown, "Batches by shape"),
    ]
    if len(loader.lengths) > 1:
        lengths = _binned(loader.lengths)
        samples = {name: f"{count:,}" for name, count in lengths.items()}
        parts.append("<h3>Samples by length</h3>" + plots.bars(lengths, samples, "Lengths"))
    return "".join(parts)


def _binned(lengths: dict[int, int]) -> dict[str, int]:
    """Sorts them into about ten bins of equal width at most."""
    width = max(1, -(-max(lengths) // 10))
    bins: Counter[int] = Counter()
    for length, count in lengths.items():
        bins[(length - 1) // width] += count
    return {f"{b * width + 1} to {(b + 1) * width}": bins[b] for b in sorted(bins)}


def _collectives(audit: Audit) -> str:
    calls = formatting.collectives(audit.first)
    if not calls:
        return ""
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td><td class="n">{size:,}</td></tr>'
        for name, (count, size) in calls.items()
    )
    return (
        '<h2>Collectives</h2><table><tr><th>kind</th><th class="n">calls</th>'
        f'<th class="n">bytes</th></tr>{rows}</table>'
    )
