"""Mistakes of the user's, which the command line says in a line, without a traceback."""

from __future__ import annotations

from lightning_gaudi.untrusted import printable


class UserError(ValueError):
    """A setting, a file or a row that cannot be used; the message says which, and what to do.

    Args:
        message: What is wrong, what was given, what to do.
        instead: The setting that would do, as in "model.optimizer=adamw", where there is one: who
            tries several ways to run a program, as `lightning-gaudi plan` does, may follow it.
    """

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


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
