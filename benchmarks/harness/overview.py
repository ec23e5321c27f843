"""The picture at the head of the results: ours against what one would use otherwise."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness.results import Result
from benchmarks.harness.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "overview"
TITLE = "How many times as fast as what you would use otherwise"
CAUTION = (
    "Measured on a CPU, and on simulated cards, which are a CPU. No figure is a Gaudi's speed."
)

_FASTER, _SLOWER = "#0068b5", "#c0392b"
_WIDTH_IN, _BAR_IN, _HEAD_IN = 10.0, 0.42, 1.5


class _Kind(NamedTuple):
    """Rows that compare us with another program, and their words for a newcomer."""

    benchmark: str
    pattern: str
    """Of the row's name; its groups go into the label."""
    label: str
    other: str
    device: str
    is_time: bool = False
    """The row is a ratio of times, of which less is better."""


_CPU, _CARD = "on the CPU", "on a simulated card"
_TRAINER = "Hugging Face's Trainer"
_KINDS = (
    _Kind("recipe_throughput", r"(.+): real tokens a second, .+", "Train {}", _TRAINER, _CPU),
    _Kind(
        "fine_tuning",
        r"real tokens a second, times those of trl, (\w+)",
        "Fine-tune by LoRA, trl's rows {}",
        "trl's SFTTrainer",
        _CARD,
    ),
    _Kind(
        "generation",
        r"(\w+), batch (\d+): tokens a second, .+",
        "Generate text, {} mode, batch {}",
        "transformers' generate",
        _CARD,
    ),
    _Kind(
        "pictures", r"\d+ steps, (\d+) pictures, .+", "Make {} pictures", "diffusers", _CARD, True
    ),
    _Kind(
        "trainer_overhead",
        rf"(.+), as written: Trainer on hpu against {_TRAINER} on hpu",
        "A step of a {}, nothing compiled",
        _TRAINER,
        _CARD,
        True,
    ),
)


@dataclass(frozen=True)
class Bar:
    """One comparison."""

    label: str
    other: str
    """What it is compared with, and on which device."""
    times: float
    """How many times as fast ours is."""
    quartiles: tuple[float, float] | None
    detail: str
    """The figures of both."""


def bars(results: Sequence[Result]) -> list[Bar]:
    """Returns the comparisons that the results have, in the order in which they are shown."""
    by_name = {result.benchmark: result for result in results}
    found = []
    for kind in _KINDS:
        if (result := by_name.get(kind.benchmark)) is not None:
            found += list(_of_kind(kind, result.rows()))
    return found


def _of_kind(kind: _Kind, rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        if (match := re.fullmatch(kind.pattern, row.name)) is None:
            continue
        times, quartiles = row.figure, row.quartiles
        if kind.is_time:
            times = 1 / times
            quartiles = quartiles and (1 / quartiles[1], 1 / quartiles[0])
        unit = "" if kind.is_time else " tokens a second"
        label = kind.label.format(*match.groups())
        yield Bar(label, f"{kind.other}, {kind.device}", times, quartiles, f"{row.detail}{unit}")


def draw(shown: Sequence[Bar]) -> str:
    """Returns a bar for each comparison, from 1 to the right if ours is faster, else to the left.

    Args:
        shown: One or more.

    Returns:
        The text of an SVG, the same for the same bars.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    height = _HEAD_IN + _BAR_IN * len(shown)
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(TITLE, fontsize=13)
    _bars(figure.add_subplot(), shown)
    figure.supxlabel(CAUTION, fontsize=9, color=_SLOWER)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": TITLE}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _bars(axes: Axes, shown: Sequence[Bar]) -> None:
    rights = [max(1.0, bar.times, *(bar.quartiles or ())) for bar in shown]
    for place, (bar, right) in enumerate(zip(shown, rights, strict=True)):
        colour = _FASTER if bar.times >= 1 else _SLOWER
        axes.barh(place, bar.times - 1, left=1, height=0.55, color=colour)
        if bar.quartiles is not None:
            axes.plot(bar.quartiles, (place, place), color="#222222", linewidth=1.2)
        text = f"{bar.times:.2f} x ({bar.detail})"
        axes.annotate(
            text, (right, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    names = [f"{bar.label}\nagainst {bar.other}" for bar in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=7.5)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.axvline(1.0, color="#222222", linewidth=1)
    # Room on the right for what stands beside the longest bar.
    axes.set_xlim(0, 1.7 * max(rights))
    axes.set_xlabel("1: as fast as the other; lines: quartiles of the rounds", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
