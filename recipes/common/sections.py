"""Defines the sections of a report: titled lines, some of them with a goal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lightning_gaudi.untrusted import hide_secrets, printable

_MAX_CHARS = 1_000_000


@dataclass(frozen=True)
class Row:
    """One line of a report."""

    name: str
    value: str
    goal: str = ""
    is_met: bool | None = None
    """Whether the goal was met; None if there is no goal."""

    @property
    def verdict(self) -> str:
        """Says in words whether the goal was met; empty without a goal."""
        if self.is_met is None:
            return ""
        return f"{'met' if self.is_met else 'MISSED'} ({self.goal})"


@dataclass(frozen=True)
class Section:
    """Lines under a title."""

    title: str
    rows: tuple[Row, ...]


def section(title: str, rows: Iterable[Row | tuple[str, str | None]]) -> Section:
    """Makes a section; pairs are rows, and those whose value is None are left out."""
    made = (
        row if isinstance(row, Row) else row[1] and Row(row[0], hide_secrets(row[1]))
        for row in rows
    )
    return Section(title, tuple(row for row in made if row))


def table(sections: Iterable[Section]) -> str:
    """Returns the sections as text; those without a line are left out."""
    filled = [each for each in sections if each.rows]
    width = max((len(row.name) for each in filled for row in each.rows), default=0)
    lines = []
    for each in filled:
        lines += ["", each.title]
        for row in each.rows:
            lines.append(f"  {row.name:<{width}}  {row.value}  {row.verdict}".rstrip())
    return printable("\n".join([*lines, ""]), max_chars=_MAX_CHARS, lines=True)
