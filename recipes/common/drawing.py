"""The curves of a run as a figure: a PNG, and the same as SVG for a page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi.callbacks import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0068b5", "#e96115", "#1e8449", "#8e44ad")


@dataclass(frozen=True)
class Panel:
    """One plot: curves over optimizer steps, and lines to compare them with."""

    label: str
    """Of the vertical axis."""
    curves: Mapping[str, Curve]
    """By label; one with few points is drawn with marks."""
    references: Mapping[str, float] = field(default_factory=dict)
    """Horizontal lines by label."""


def draw(title: str, panels: list[Panel]) -> Figure:
    """Draw panels side by side, without a display and without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(panels), 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for number, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(1, len(panels), number), panel)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for colour, (label, curve) in zip(_COLOURS * 4, panel.curves.items(), strict=False):
        steps, values = zip(*curve, strict=True)
        marker = "o" if len(curve) <= 30 else None
        axes.plot(steps, values, label=label, color=colour, marker=marker, markersize=4)
    styles = ("--", ":", "-.")
    for style, (label, value) in zip(styles * 2, panel.references.items(), strict=False):
        axes.axhline(value, color="#444444", linestyle=style, linewidth=1.2, label=label)
    axes.set(xlabel="optimizer step", ylabel=panel.label)
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False)


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure."""
    figure.savefig(path)


def to_svg(figure: Figure) -> str:
    """The figure as an <svg> element without a fixed size, the same for the same curves."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "report"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    head, rest = element.split(">", 1)
    return re.sub(r'\s(width|height)="[^"]*"', "", head) + ">" + rest
