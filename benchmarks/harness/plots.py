"""The figures of a group against their limits: an SVG, its text kept as text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness.rows import RATIO, Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KEPT, _MISSED, _LIMIT = "#0068b5", "#c0392b", "#444444"
_WIDTH_IN, _ROW_IN, _HEAD_IN, _CURVES_IN = 10.0, 0.34, 1.0, 5.0


def is_drawn(rows: Sequence[Row]) -> bool:
    """Tells if there is anything to draw: ratios, and what has a limit other than none at all."""
    return bool(_drawn(rows))


def draw(title: str, rows: Sequence[Row]) -> str:
    """Returns one panel for each unit: figures as dots, quartiles as lines, limits as marks.

    Args:
        title: Of the picture.
        rows: Those that count to a limit of 0 are left out, as are counts without a limit.

    Returns:
        The text of an SVG, the same for the same rows.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    panels: dict[str, list[Row]] = {}
    for row in _drawn(rows):
        panels.setdefault(row.unit, []).append(row)
    heights = [_HEAD_IN + _ROW_IN * len(each) for each in panels.values()]
    curves = [row for row in rows if row.curve]
    heights += [_CURVES_IN] * bool(curves)
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.4), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    for index, (unit, each) in enumerate(panels.items()):
        _panel(figure.add_subplot(grid[index]), unit, each)
    if curves:
        _draw_curves(figure.add_subplot(grid[-1]), curves)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _drawn(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.unit.startswith(RATIO) or row.limit]


def _draw_curves(axes: Axes, rows: Sequence[Row]) -> None:
    """Draws how each grows, by logarithms: times what it is at its smallest size."""
    for row in rows:
        sizes, values = zip(*row.curve, strict=True)
        first = next((value for value in values if value > 0), 1.0)
        axes.plot(sizes, [value / first for value in values], marker=".", label=row.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ranks, rows or layers", fontsize=8)
    axes.set_ylabel("times that of the fewest", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _panel(axes: Axes, unit: str, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        colour = _KEPT if row.is_kept else _MISSED
        if row.quartiles is not None:
            axes.plot(row.quartiles, (place, place), color=colour, linewidth=3, alpha=0.45)
        axes.plot(row.figure, place, "o", color=colour, markersize=5)
        axes.annotate(
            number(row.figure),
            *((row.figure, place), (0, 5)),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
        if row.limit is not None:
            mark = ">" if row.is_floor else "<"
            axes.plot(row.limit, place, mark, color=_LIMIT, markersize=6, fillstyle="none")
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.5 / len(rows), x=0.08)
    axes.set_xlabel(f"{'ratio' if unit == RATIO else unit}; < at most, > at least", fontsize=8)
    if unit.startswith(RATIO):
        axes.axvline(1.0, color="#bbbbbb", linewidth=1, zorder=0)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
