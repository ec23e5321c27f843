"""Renders the report as one page of HTML that needs nothing else: no network, no scripts."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lightning_gaudi.report import html, svg

from . import formatting, line_totals
from .finding import Finding, Weight
from .merging import Audit, judged_steps
from .record import WARM_UP, Loader, Record

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1a202c}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
code,pre{font:13px/1.5 ui-monospace,monospace}
pre{background:#f7fafc;padding:.4rem .6rem;margin:.4rem 0}
pre{white-space:pre-wrap}pre,p,h2{overflow-wrap:anywhere}.wide{overflow-x:auto}
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
_TEMPLATE = """\
{% extends "document" %}
{% block body %}
<h1>Audit</h1>
<pre>{{ command }}</pre>
{% if status %}
<p><b>The command exited with {{ status }}.</b></p>
{% endif %}
{% if record %}
<p class="quiet">{{ shown.headline(audit) }}</p>
{% if not found %}
<div class="finding clean"><p>Nothing was found.</p></div>
{% else %}
<h2>{{ found|length }} finding{{ "s" if found|length > 1 }}, worst first</h2>
{% endif %}
{% for each in found %}
<div class="finding {{ weight(each) }}">
<b><code>{{ shown.short(each.file) }}:{{ each.line }}</code></b>
<span class="rule">{{ each.rule }}, {{ shown.frequency(each, num_judged) }}
{%- if num_ranks > 1 %}, ranks {{ each.ranks|join(", ") }}{% endif %}</span>
{% if shown.source_line(each) %}
<pre>{{ shown.source_line(each) }}</pre>
{% endif %}
<p>{{ each.message[:1].upper() }}{{ each.message[1:] }}
{%- if shown.inside(each) %} In <code>{{ shown.inside(each) }}</code>.{% endif %}<br>
{% if each.fix %}<b>Instead:</b> {{ each.fix }}{% endif %}
{%- if each.source %}<br><span class="rule">{{ each.source }}</span>{% endif %}</p>
</div>
{% endfor %}
{% if record.steps %}
<h2>Steps of rank {{ record.rank }}</h2>
{% for title, plot in steps %}
<h3>{{ title }}</h3>{{ plot }}
{% endfor %}
<p class="quiet">Shaded: the first steps, which set up and are not judged.</p>
{% endif %}
{% if lines %}
<h2>By line, all steps</h2>
<div class="wide" tabindex="0" role="region" aria-label="By line, all steps">
<table>
<tr><th>line</th>
{%- for title in titles.values() %}<th class="n">{{ title }}</th>{% endfor %}<th></th></tr>
{% for each, code in lines %}
<tr><td><code>{{ shown.label(each.file, each.line) }}</code></td>
{%- for name in titles %}{{ number(each[name]) }}{% endfor %}<td><code>{{ code }}</code></td></tr>
{% endfor %}
</table>
</div>
{% if causes %}
<h3>Graphs compiled again</h3>
<div class="wide" tabindex="0" role="region" aria-label="Graphs compiled again">
<table>
{% for line, cause, count in causes %}
<tr><td><code>{{ shown.label(line.file, line.line) }}</code></td>
{#- #}<td>{{ cause }}</td>{{ number(count) }}</tr>
{% endfor %}
</table>
</div>
{% endif %}
{% endif %}
<h2>Memory at its peak</h2>
<p>At most {{ shown.size(record.peak_bytes) }} of {{ shown.size(record.limit_bytes) }} were in use
at a time.</p>
{{ memory }}
{% for each, shapes, lengths in loaders %}
<h2>Shapes of {{ each.name }}, {{ each.stage }}</h2>
<p>{{ each.batches|length }} batches of {{ each.shapes|length }} shapes, made at
<code>{{ shown.short(each.file) }}:{{ each.line }}</code> by <code>{{ each.collate }}</code>
{%- for line in shown.advice(each) %}<br>{{ line }}{% endfor %}</p>
{{ shapes }}
{% if lengths %}
<h3>Samples by length</h3>{{ lengths }}
{% endif %}
{% endfor %}
{% if collectives %}
<h2>Collectives</h2>
<div class="wide" tabindex="0" role="region" aria-label="Collectives">
<table>
<tr><th>kind</th><th class="n">calls</th><th class="n">bytes</th></tr>
{% for name, (count, size) in collectives.items() %}
<tr><td>{{ name }}</td>{{ number(count) }}{{ number(size) }}</tr>
{% endfor %}
</table>
</div>
{% endif %}
{% endif %}
{% endblock %}
"""
_CODE_LENGTH = 48


def render(audit: Audit, found: Sequence[Finding]) -> str:
    """Returns the whole page.

    Args:
        audit: What was noted.
        found: What is said against it, worst first.
    """
    command, record = formatting.command(audit), audit.first if audit.records else None
    return html.render(
        _TEMPLATE,
        title=f"Audit of {command}",
        style=_STYLE,
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
