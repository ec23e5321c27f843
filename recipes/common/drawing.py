"""Draws the curves of a run, as a PNG and as SVG for a page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi.callbacks import Curve
from recipes.common.folders import write_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0068b5", "#e96115", "#1e8449", "#8e44ad")
_STYLES = ("--", ":", "-.", (0, (1, 4)))
_MAX_MARKED = 30


@dataclass(frozen=True)
class Panel:
    """A plot of curves over optimizer steps, with lines to compare them with."""

    label: str
    """The label of the vertical axis."""
    curves: Mapping[str, Curve]
    """The curves by label; one with few points is drawn with marks."""
    references: Mapping[str, float] = field(default_factory=dict)
    """The heights of horizontal lines, by label."""


def save_png(title: str, panels: Sequence[Panel], path: Path) -> None:
    """Draws panels side by side, on axes of the same steps."""
    figure = _figure(len(panels))
    figure.suptitle(title)
    for number, panel in enumerate(panels, start=1):
        _draw(figure.add_subplot(1, len(panels), number), panel, _last_step(panels))
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_new(path, content.getvalue())


def to_svg(panels: Sequence[Panel]) -> list[str]:
    """Returns an <svg> element for each panel, without a fixed size; its text stays text."""
    import matplotlib

    elements = []
    for number, panel in enumerate(panels):
        figure, buffer = _figure(1), io.StringIO()
        _draw(figure.add_subplot(), panel, _last_step(panels))
        # The salt differs, so that the names that one element defines are not those of another.
        settings = {"svg.fonttype": "none", "svg.hashsalt": f"panel {number}"}
        with matplotlib.rc_context(settings):
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        head, rest = text[text.index("<svg") :].split(">", 1)
        head = re.sub(r'\s(width|height)="[^"]*"', "", head)
        words = html.escape(f"{panel.label} by step")
        head = f'{head} role="img" aria-label="{words}">'
        elements.append(re.sub(r'<g id="[^"]*"', "<g", head + rest))
    return elements


def _figure(num_panels: int) -> Figure:
    """Makes a figure without a display, and without the global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * num_panels, 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _last_step(panels: Sequence[Panel]) -> int:
    return max(curve[-1][0] for panel in panels for curve in panel.curves.values())


def _draw(axes: Axes, panel: Panel, last_step: int) -> None:
    for colour, (label, curve) in zip(_COLOURS, panel.curves.items(), strict=False):
        steps, values = zip(*curve, strict=True)
        marker = "o" if len(curve) <= _MAX_MARKED else None
        axes.plot(steps, values, label=label, color=colour, marker=marker, markersize=4)
    for style, (label, value) in zip(_STYLES, panel.references.items(), strict=False):
        axes.axhline(value, color="#444444", linestyle=style, linewidth=1.2, label=label)
    axes.set(xlabel="optimizer step", ylabel=panel.label, xlim=(0, last_step * 1.03))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False)
