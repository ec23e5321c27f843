"""A plan as a picture: what holds a card's memory, against what the cards have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

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
"""Of the categories of `Rehearsed`, in their order."""
_WIDTH, _ROW, _LEFT, _TOP = 900, 46, 20, 60


def draw(plans: Sequence[Planned], cards: Sequence[Card], path: str) -> None:
    """Writes an SVG with a stacked bar for each way to run the program.

    Args:
        plans: Those that could not be rehearsed are left out.
        cards: Whose memory is drawn as a line.
        path: The file.
    """
    found = [each for each in plans if each.rehearsed is not None]
    most = max([each.rehearsed.peak_bytes for each in found if each.rehearsed], default=1)
    most = max([most, *(card.memory_bytes for card in cards)])
    scale = (_WIDTH - 2 * _LEFT) / most
    height = _TOP + _ROW * len(found) + 40
    categories = [*found[0].rehearsed.categories] if found and found[0].rehearsed else []
    colours = dict(zip(categories, _COLOURS, strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_legend(colours),
    ]
    for index, each in enumerate(found):
        parts += _bar(each, colours, _TOP + index * _ROW, scale)
    for index, card in enumerate(sorted(cards, key=lambda card: card.memory_bytes)):
        x = _LEFT + card.memory_bytes * scale
        bottom = _TOP + _ROW * len(found)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="#555" '
            'stroke-dasharray="3 3"/>'
            f'<text x="{x:.1f}" y="{bottom + 12 + 12 * (index % 2)}" text-anchor="end">'
            f"{escape(card.title)}</text>"
        )
    Path(path).write_text("\n".join([*parts, "</svg>\n"]))


def _legend(colours: Mapping[str, str]) -> list[str]:
    parts, x = [], _LEFT
    for name, colour in colours.items():
        parts.append(
            f'<rect x="{x}" y="16" width="12" height="12" fill="{colour}"/>'
            f'<text x="{x + 17}" y="26">{escape(name)}</text>'
        )
        x += 40 + 7 * len(name)
    return parts


def _bar(planned: Planned, colours: Mapping[str, str], y: int, scale: float) -> list[str]:
    found = planned.rehearsed
    assert found is not None
    title = f"{planned.change or 'as it is'}: {describe(planned.request)}, batch {found.batch_size}"
    parts = [f'<text x="{_LEFT}" y="{y + 12}">{escape(title)}, {gib(found.peak_bytes)}</text>']
    x = float(_LEFT)
    for name, num_bytes in found.categories.items():
        width = num_bytes * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 17}" width="{width:.1f}" height="20" '
            f'fill="{colours[name]}">'
            f"<title>{escape(name)} {gib(num_bytes)}</title></rect>"
        )
        x += width
    return parts
