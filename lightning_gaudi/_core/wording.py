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


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns " Did you mean 'x'?", to follow a sentence about `word`; "" if no name is near.

    Args:
        word: The name that does not exist.
        names: The names that exist.
        cutoff: The least similarity, as of `difflib.get_close_matches`.
    """
    near = difflib.get_close_matches(word, list(names), 1, cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the one of `names` that was probably meant, if any."""
    return next(iter(difflib.get_close_matches(word, list(names), n=1)), None)
