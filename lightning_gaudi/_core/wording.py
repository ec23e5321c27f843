"""Phrases that stand in messages of many parts."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names as "a, b, c and 2 more".

    Args:
        names: What is named; text from outside is to be printable.
        most: How many are named.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
