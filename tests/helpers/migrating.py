"""docs/migration/from-lightning-habana.md: its sections, and the cells of its tables."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = (
    Path(__file__).parents[2] / "docs" / "migration" / "from-lightning-habana.md"
).read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCUMENT, re.M | re.S)
    assert found is not None, title
    return found.group(1)


def rows(title: str, head: str = "") -> list[list[str]]:
    """The rows of the tables below a heading whose heads begin with `head`."""
    tables = re.findall(r"^\|(.*)\n\|[-|]+\n((?:\|.*\n)+)", section(title), re.M)
    lines = [line for first, body in tables if head in first for line in body.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def spans(cell: str) -> list[str]:
    """What a cell has in backticks, without the arguments of calls."""
    return [span.removesuffix("()") for span in re.findall(r"`([^`]+)`", cell)]
