"""A figure with its limit: what a benchmark hands over, and all that the results are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

RATIO = "x"


@dataclass(frozen=True)
class Row:
    """One figure."""

    name: str
    figure: float
    """The median where it was measured several times."""
    unit: str
    """`RATIO`, or what the figure counts: "ms", "launches a step"."""
    limit: float | None = None
    """None: shown, and held to nothing."""
    is_floor: bool = False
    """The limit is the least, not the most."""
    quartiles: tuple[float, float] | None = None
    """None: counted, not timed, or measured once."""
    num_rounds: int = 1
    detail: str = ""
    """What to know beside the figure."""
    curve: tuple[tuple[float, float], ...] = ()
    """Where the figure is an exponent: sizes, and what was measured at each."""

    @property
    def is_kept(self) -> bool:
        """Whether the figure keeps its limit."""
        if self.limit is None:
            return True
        return self.figure >= self.limit if self.is_floor else self.figure <= self.limit

    def as_json(self) -> dict[str, Any]:
        """For a file; `from_json` is the way back."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Row:
        """What `as_json` made."""
        quartiles = found["quartiles"]
        curve = tuple((size, value) for size, value in found.get("curve", ()))
        both = quartiles and (quartiles[0], quartiles[1])
        return cls(**found | {"quartiles": both, "curve": curve})


def of_rounds(name: str, figures: Sequence[float], unit: str, **more: Any) -> Row:
    """Returns the median of what was measured several times, with its quartiles.

    Args:
        name: Of the row.
        figures: One a round, two at least.
        unit: Theirs.
        more: Other fields of the row.
    """
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return Row(name, median(figures), unit, quartiles=(low, high), num_rounds=len(figures), **more)


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float], **more: Any) -> Row:
    """Tells how many times theirs ours is: the median of ratios, with both medians beside.

    Args:
        name: Of the row.
        ours: Seconds, one a round.
        theirs: Those of the same rounds.
        more: Other fields of the row.
    """
    rounds = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    detail = f"{seconds(median(ours))} against {seconds(median(theirs))}"
    return of_rounds(name, rounds, RATIO, **{"detail": detail} | more)


def seconds(value: float) -> str:
    """Returns a duration with three digits or more, in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{value * scale:.{_decimals(value * scale)}f} {unit}"
    return f"{value * 1e6:.{_decimals(value * 1e6)}f} us"


def number(value: float) -> str:
    """Returns a figure with three digits or more; a whole number without decimals."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def cells(row: Row) -> tuple[str, ...]:
    """Name, figure, quartiles, limit, rounds and detail as text; see `HEADER`."""
    limit = ""
    if row.limit is not None:
        limit = f"{'at least' if row.is_floor else 'at most'} {number(row.limit)}"
        limit += "" if row.is_kept else ", missed"
    spread = "" if row.quartiles is None else " to ".join(map(number, row.quartiles))
    rounds = str(row.num_rounds) if row.quartiles else ""
    figure = f"{row.figure:.2f}" if row.unit == RATIO else number(row.figure)
    return row.name, f"{figure} {row.unit}", spread, limit, rounds, row.detail


HEADER = ("", "Median", "Quartiles", "Limit", "Rounds", "")


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    lines = [HEADER, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
