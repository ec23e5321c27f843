"""Defines the error for mistakes of users, which the command line shows in a line."""

from __future__ import annotations

from lightning_gaudi.untrusted import printable


class UserError(ValueError):
    """Says which setting, file or row cannot be used, and what to do.

    Args:
        message: What is wrong, what was given, what to do.
        instead: The setting that would work, as in "model.optimizer=adamw", if there is one. A tool
            that tries several ways to run a program, as `lightning-gaudi plan`, may use it.
    """

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


def line_of(error: BaseException) -> str:
    """Returns the message of an error, without the traceback that a DataLoader's worker adds.

    torch raises the error of a worker anew, as the same type, with the worker's traceback for a
    message (torch/_utils.py, ExceptionWrapper).
    """
    text = str(error).strip()
    if text.startswith("Caught ") and "Original Traceback" in text:
        text = text.rpartition(f"{type(error).__name__}: ")[2]
    return " ".join(text.split())


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{printable(lines[0], max_chars=300).rstrip('.')}."
