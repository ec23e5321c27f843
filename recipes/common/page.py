"""Renders the report of a run as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from lightning_gaudi.report import html
from recipes.common.sections import Section

_STYLE = """\
:root { color-scheme: light }
* { box-sizing: border-box }
body { font: 16px/1.45 system-ui, sans-serif; color: #1c2733; background: #fff;
  max-width: 64rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; margin: .5rem 0 }
h2 { font-size: 1.05rem; margin: 1.5rem 0 .4rem; color: #0068b5 }
p.state { margin: 0 0 1rem; color: #4a5866 }
p.early { color: #a33b00; font-weight: 600 }
footer { margin-top: 1.5rem; color: #4a5866 }
figure { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: 1rem }
figure svg { flex: 1 1 22rem; min-width: 0; max-width: 100%; height: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid #e1e7ec }
th { font-weight: 400; color: #4a5866; width: 38% }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
.met { color: #1e8449 } .missed { color: #b03a2e; font-weight: 600 }
@media (max-width: 34rem) {
  th, td { display: block; width: 100%; padding-right: 0 }
  th { border-bottom: 0; padding-bottom: 0 }
  td { padding-top: 0 }
}
@media print {
  body { max-width: none; font-size: 11pt; padding: 0 }
  figure, tr, section { break-inside: avoid }
}
"""


_TEMPLATE = """\
{% extends "document" %}
{% block body %}
<h1>{{ title }}</h1>
<p class="state{{ " early" if is_early }}">{{ state }}</p>
{% if drawings %}
<figure>
{% for each in drawings %}
{{ each }}
{% endfor %}
</figure>
{% endif %}
{% for section in sections if section.rows %}
<section>
<h2>{{ section.title }}</h2>
<table>
{% for row in section.rows %}
<tr><th scope="row">{{ row.name }}</th><td>{{ row.value }}
{%- if row.is_met is not none %} <span class="{{ "met" if row.is_met else "missed" }}">
{{- row.verdict }}</span>{% endif %}</td></tr>
{% endfor %}
</table>
</section>
{% endfor %}
<footer>{{ footer }}</footer>
{% endblock %}
"""


def page(
    title: str,
    state: str,
    is_early: bool,
    drawings: Sequence[str],
    sections: Iterable[Section],
    footer: str,
) -> str:
    """Writes the report.

    Args:
        title: of the run.
        state: how it ended.
        is_early: whether that was before its time.
        drawings: <svg> elements, taken as they are.
        sections: those without a line are left out.
        footer: a line of text.
    """
    return html.render(
        _TEMPLATE,
        title=title,
        style=_STYLE,
        state=state,
        is_early=is_early,
        drawings=[Markup(each) for each in drawings],
        sections=list(sections),
        footer=footer,
    )
