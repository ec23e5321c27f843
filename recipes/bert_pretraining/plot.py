"""The loss curve of a run, from what its CSV logger wrote."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = list[tuple[int, float]]
"""(step, value), in the order in which they were logged."""


def read_curves(metrics_csv: Path, names: Sequence[str]) -> dict[str, Curve]:
    """Read metrics by name; a name that was never logged gives an empty curve."""
    curves: dict[str, Curve] = {name: [] for name in names}
    with metrics_csv.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, curve in curves.items():
                if row.get(name):
                    curve.append((int(row["step"]) + 1, float(row[name])))
    return curves


def plot_losses(
    curves: Mapping[str, Curve], reference: float, reference_label: str, title: str, output: Path
) -> None:
    """Draw losses over steps, and the line that a model must fall below to have learnt context.

    Args:
        curves: what to draw, by label; the last one is drawn with marks.
        reference: the loss of word frequency alone, in nats.
        reference_label: what to call it.
        title: of the plot.
        output: the PNG to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no global state of pyplot
    axes = figure.add_subplot()
    styles = [{"linewidth": 1.2, "alpha": 0.7}] * (len(curves) - 1) + [
        {"marker": "o", "linewidth": 2}
    ]
    for (label, curve), style in zip(curves.items(), styles, strict=True):
        if curve:
            steps, values = zip(*curve, strict=True)
            axes.plot(steps, values, label=label, **style)  # type: ignore[arg-type]
    axes.axhline(reference, color="black", linestyle="--", label=reference_label)
    axes.set(xlabel="training step", ylabel="loss of masked tokens (nats)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(output)
