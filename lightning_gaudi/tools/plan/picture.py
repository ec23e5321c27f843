"""Draws a plan: what holds a card's memory, beside the memory that the cards have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_gaudi.report import svg
from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.report import describe, gib

_COLOURS = (
    "#0868ac",
    "#43a2ca",
    "#7bccc4",
    "#bae4bc",
    "#c2a5cf",
    "#9970ab",
    "#762a83",
    "#f4a582",
    "#999999",
)
"""The colours of the categories of `Rehearsed`, in their order."""
_WIDTH, _ROW, _LEFT, _TOP = 900, 46, 20, 60


def draw(plans: Sequence[Planned], cards: Sequence[Card], path: str) -> None:
    """Writes an SVG with a stacked bar for each way to run the program.

    Args:
        plans: The plans; those that could not be rehearsed are left out.
        cards: The cards whose memory is drawn as a line.
        path: The path of the file.
    """
    found = [each for each in plans if each.rehearsed is not None]
    most = max([each.rehearsed.peak_bytes for each in found if each.rehearsed], default=1)
    most = max([most, *(card.memory_bytes for card in cards)])
    scale = (_WIDTH - 2 * _LEFT) / most
    height = _TOP + _ROW * len(found) + 40
    categories = [*found[0].rehearsed.categories] if found and found[0].rehearsed else []
    colours = dict(zip(categories, _COLOURS, strict=True))
    marks = [
        svg.rectangle(0, 0, _WIDTH, height, "white"),
        *_legend(colours),
    ]
    for index, each in enumerate(found):
        marks += _bar(each, colours, _TOP + index * _ROW, scale)
    for index, card in enumerate(sorted(cards, key=lambda card: card.memory_bytes)):
        x = _LEFT + card.memory_bytes * scale
        bottom = _TOP + _ROW * len(found)
        marks.append(svg.line(x, _TOP - 6, x, bottom, is_dashed=True))
        marks.append(svg.text(x, bottom + 12 + 12 * (index % 2), card.title, "end"))
    inner = f'<g font-family="sans-serif" font-size="12">{"".join(marks)}</g>'
    Path(path).write_text(f"{svg.picture(_WIDTH, height, [inner])}\n")


def _legend(colours: Mapping[str, str]) -> list[str]:
    marks, x = [], _LEFT
    for name, colour in colours.items():
        marks += [svg.rectangle(x, 16, 12, 12, colour), svg.text(x + 17, 26, name)]
        x += 40 + 7 * len(name)
    return marks


def _bar(planned: Planned, colours: Mapping[str, str], y: int, scale: float) -> list[str]:
    found = planned.rehearsed
    assert found is not None
    title = f"{planned.change or 'as it is'}: {describe(planned.request)}, batch {found.batch_size}"
    marks = [svg.text(_LEFT, y + 12, f"{title}, {gib(found.peak_bytes)}")]
    x = float(_LEFT)
    for name, num_bytes in found.categories.items():
        width, told = num_bytes * scale, f"{name} {gib(num_bytes)}"
        marks.append(svg.rectangle(x, y + 17, width, 20, colours[name], told))
        x += width
    return marks
