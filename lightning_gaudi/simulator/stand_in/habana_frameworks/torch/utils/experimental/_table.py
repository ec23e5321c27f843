"""Draws tables as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_LEFT, _BETWEEN, _RIGHT = "| ", " | ", " |"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], max_width: int) -> str:
    """Draws a table whose cells wrap where it would get too wide.

    Args:
        header: The columns' names.
        rows: The cells, as many in each row as there are columns.
        max_width: Characters in a line, at the most.
    """
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = _widths(cells, max_width - len(_BETWEEN) * (len(header) - 1) - len(_LEFT + _RIGHT))
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [rule]
    for row in cells:
        wrapped = [textwrap.wrap(cell, w) or [""] for cell, w in zip(row, widths, strict=True)]
        for i in range(max(map(len, wrapped))):
            pieces = [piece[i] if i < len(piece) else "" for piece in wrapped]
            padded = (text.ljust(width) for text, width in zip(pieces, widths, strict=True))
            lines.append(_LEFT + _BETWEEN.join(padded) + _RIGHT)
        lines.append(rule)
    return "\n".join(lines)


def _widths(cells: list[list[str]], available: int) -> list[int]:
    """Returns the width of each column: what its cells need, up to what the widest may have."""
    needed = [max(map(len, column)) for column in zip(*cells, strict=True)]
    limit = max(needed)
    while limit > 1 and sum(min(width, limit) for width in needed) > available:
        limit -= 1
    return [min(width, limit) for width in needed]
