"""Plots as SVG, for a page or a file: bars by step, bars that lie, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f")
"""For parts of a bar, in order; readable on white and for the colour-blind by their lightness."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 190, 64, 24, 14
_ROW, _LABEL = 24, 250


def bars_by_step(parts: Mapping[str, Sequence[int]], num_warm_up: int, what: str) -> Markup:
    """Returns a bar for each step, made of parts; steps of the warm-up are shaded.

    Args:
        parts: By name, a figure for each step.
        num_warm_up: The first steps.
        what: What is counted, for those who do not see it.
    """
    totals = [sum(values) for values in zip(*parts.values(), strict=True)]
    highest = max(totals, default=0) or 1
    slot = (_WIDTH - _LEFT) / max(len(totals), 1)
    inner = _HEIGHT - _BOTTOM - _TOP
    marks = [rectangle(_LEFT, _TOP, slot * min(num_warm_up, len(totals)), inner, "#edf2f7", "")]
    for step in range(len(totals)):
        below = float(_HEIGHT - _BOTTOM)
        for colour, (name, values) in zip(COLOURS, parts.items(), strict=False):
            height = inner * values[step] / highest
            below -= height
            left = _LEFT + slot * (step + 0.12)
            title = f"step {step + 1}: {values[step]:,} {name}"
            marks.append(rectangle(left, below, slot * 0.76, height, colour, title))
        if len(totals) <= 30 or step % 10 == 9:
            marks.append(text(_LEFT + slot * (step + 0.5), _HEIGHT - 8, str(step + 1), "middle"))
    marks.append(text(_LEFT - 6, _TOP + 8, f"{highest:,}", "end"))
    marks.append(text(_LEFT - 6, _HEIGHT - _BOTTOM, "0", "end"))
    marks.append(line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH, _HEIGHT - _BOTTOM))
    return picture(_WIDTH, _HEIGHT, marks, what) + _legend(list(parts))


def bars(values: Mapping[str, int], shown: Mapping[str, str], what: str) -> Markup:
    """Returns a lying bar for each name.

    Args:
        values: By name, its length.
        shown: By name, what stands behind the bar.
        what: What is shown, for those who do not see it.
    """
    highest = max(values.values(), default=0) or 1
    width = _WIDTH - _LABEL - 130
    marks: list[str] = []
    for row, (name, value) in enumerate(values.items()):
        top = row * _ROW + 4
        marks.append(text(_LABEL - 8, top + 13, name, "end"))
        length = width * value / highest
        marks.append(rectangle(_LABEL, top, length, _ROW - 8, COLOURS[0], shown[name]))
        marks.append(text(_LABEL + length + 6, top + 13, shown[name], "start"))
    return picture(_WIDTH, len(values) * _ROW + 8, marks, what)


def picture(width: float, height: float, marks: Sequence[str], what: str = "") -> Markup:
    """Returns a drawing of marks, as wide as there is room.

    Args:
        width: In the units of the marks.
        height: The same.
        marks: Of `rectangle`, `text` and `line`.
        what: What is shown, for those who do not see it.
    """
    label = f' role="img" aria-label="{escape(what)}"' if what else ""
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{label}>'
        f"{''.join(marks)}</svg>"
    )


def rectangle(
    left: float, top: float, width: float, height: float, colour: str, title: str = ""
) -> str:
    """Returns a filled rectangle, with what a reader's pointer is told."""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}">{f"<title>{escape(title)}</title>" if title else ""}</rect>'
    )


def text(left: float, base: float, words: str, anchor: str = "start") -> str:
    """Returns words; `anchor` says which end of them is at `left`."""
    return f'<text x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(from_x: float, from_y: float, to_x: float, to_y: float, *, is_dashed: bool = False) -> str:
    """Returns a thin line."""
    dashes = ' stroke-dasharray="3 3"' if is_dashed else ""
    return (
        f'<line x1="{from_x:.1f}" y1="{from_y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" '
        f'stroke="#4a5568"{dashes}/>'
    )


def _legend(names: Sequence[str]) -> Markup:
    if len(names) < 2:
        return Markup()
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(COLOURS, names, strict=False)
    )
    return Markup(f'<p class="legend">{keys}</p>')
