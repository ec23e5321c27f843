"""Numbers that the environment holds, which a launcher has put there, or somebody by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .untrusted import printable

_MAX_DIGITS = 18


def read_integer(
    name: str,
    default: int | None = None,
    *,
    at_least: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Returns the whole number that a variable of the environment holds.

    Args:
        name: The variable.
        default: What it is where the variable is not set, or is empty.
        at_least: The smallest number that it may hold.
        environment: Where the variable is looked up.

    Raises:
        ValueError: It holds something else, or nothing and there is no default.
    """
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if re.fullmatch(rf"-?[0-9]{{1,{_MAX_DIGITS}}}", text) and int(text) >= at_least:
        return int(text)
    shown = printable(repr(text), max_chars=100) if text else "not set"
    raise ValueError(
        f"{name}={shown}, but should be a whole number of at least {at_least}. Whatever starts the "
        "processes sets it; unset it if that is not the case, or correct it."
    )
