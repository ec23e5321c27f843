"""Phrases for messages, such as lists of names and the word that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def listed(names: Sequence[str], most: int = 3) -> str:
    """Returns names as "a, b, c and 2 more".

    Args:
        names: What is named; text from outside is to be printable.
        most: How many are named.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the one of `names` that was probably meant, if any."""
    return next(iter(difflib.get_close_matches(word, list(names), n=1)), None)
