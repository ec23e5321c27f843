"""How something grows: figures at several sizes, and the exponent of the power that fits them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.harness.rows import Row, number, seconds

EXPONENT = "exponent"


def exponent(points: Mapping[int, float]) -> float:
    """Returns the slope of the line that fits logarithms best: 1 is linear, 2 quadratic.

    Args:
        points: By size, two at least; what is not above 0 says nothing.
    """
    logs = [(math.log(size), math.log(value)) for size, value in points.items() if value > 0]
    if len(logs) < 2:
        return 0.0
    mean_x, mean_y = (sum(each) / len(logs) for each in zip(*logs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def curve(
    name: str, points: Mapping[int, float], unit: str = "s", limit: float | None = None
) -> Row:
    """Returns a row whose figure is the exponent, and that has the points beside it.

    Args:
        name: Of the row.
        points: By size.
        unit: Theirs; of seconds each is shown in the unit that suits it.
        limit: Of the exponent.
    """
    shown = {
        size: seconds(y) if unit == "s" else f"{number(y)} {unit}" for size, y in points.items()
    }
    detail = "; ".join(f"{size:,}: {text.strip()}" for size, text in shown.items())
    return Row(name, exponent(points), EXPONENT, limit, detail=detail, curve=tuple(points.items()))
