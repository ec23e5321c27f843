"""The report of a run as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from recipes.common.sections import Row, Section

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
    body = "\n".join(_section(each) for each in sections if each.rows)
    drawn = "\n".join(drawings)
    figure = f"<figure>\n{drawn}\n</figure>\n" if drawn else ""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="state{" early" if is_early else ""}">{escape(state)}</p>
{figure}{body}
<footer>{escape(footer)}</footer>
</body>
</html>
"""


def _section(each: Section) -> str:
    rows = "\n".join(map(_row, each.rows))
    return f"<section>\n<h2>{escape(each.title)}</h2>\n<table>\n{rows}\n</table>\n</section>"


def _row(row: Row) -> str:
    verdict = ""
    if row.is_met is not None:
        kind = "met" if row.is_met else "missed"
        verdict = f' <span class="{kind}">{escape(row.verdict)}</span>'
    return f'<tr><th scope="row">{escape(row.name)}</th><td>{escape(row.value)}{verdict}</td></tr>'
