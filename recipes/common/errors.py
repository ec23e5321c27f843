"""Mistakes of the user's, which the command line says in a line, without a traceback."""

from __future__ import annotations

from lightning_gaudi.untrusted import printable


class UserError(ValueError):
    """A setting, a file or a row that cannot be used; the message says which, and what to do."""


def line_of(error: BaseException) -> str:
    """Returns what an error says, without the frames that a DataLoader's worker puts around it.

    torch raises the error of a worker anew, as the same type, with the worker's traceback for a
    message (torch/_utils.py, ExceptionWrapper).
    """
    text = str(error).strip()
    if text.startswith("Caught ") and "Original Traceback" in text:
        text = text.rpartition(f"{type(error).__name__}: ")[2]
    return " ".join(text.split())


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says, or its type, as a sentence to show."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{printable(lines[0], max_chars=300).rstrip('.')}."
