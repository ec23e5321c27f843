"""Finds the exit status of the program while it ends, which `atexit` handlers are not told.

An uncaught exception is in `sys.last_value`. A `SystemExit` is nowhere, so `sys.exit` is wrapped if
the vendor's package is there. Whether such an exception really ends the program, and was not caught
on the way, shows in the frames that it has left: none of them has returned.
"""

from __future__ import annotations

import functools
import opcode
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

_noted: SystemExit | None = None
"""The last `SystemExit` of the main thread with a status other than 0."""


def noting(function: Callable[..., Any]) -> Any:
    """Wraps a function such as `sys.exit`, so that the `SystemExit` that it raises is noted."""

    @functools.wraps(function)
    def exit(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SystemExit as error:
            note(error)
            raise

    return exit


def note(exit: SystemExit) -> None:
    """Remembers an exception that may end the program."""
    global _noted
    if threading.current_thread() is threading.main_thread():
        _noted = exit if of(exit) else None


def of_failure() -> int | None:
    """Returns the exit status with which an error or exit ends the program; None if none does.

    It is valid only while the program ends, in `atexit` handlers. A bare `raise SystemExit(...)`
    outside of a strategy's tasks is not seen.
    """
    found = error()
    return None if found is None else of(found)


def error() -> BaseException | None:
    """Returns the exception that ends the program with a status other than 0."""
    if hasattr(sys, "ps1"):
        # `sys.ps1` exists in an interactive session only.
        return None  # an interactive session shows errors, and goes on
    for found in (getattr(sys, "last_value", None), _noted):
        if isinstance(found, BaseException) and _has_ended_program(found) and of(found):
            return found
    return None


def in_one_line(error: BaseException) -> str:
    """Returns an error as one line."""
    lines = str(error).strip().splitlines() or ["(it says nothing)"]
    text = lines[0].rstrip(".")
    # torch wraps the error of a DataLoader's worker in a text whose last line names it.
    if "Original Traceback" in str(error) and len(lines) > 1:
        text = f"{text}: {lines[-1]}"
    return f"{type(error).__name__}: {text[:500]}"


def _has_ended_program(error: BaseException) -> bool:
    """Returns whether an exception has left the outermost frame uncaught.

    Its traceback names the last frame that has handled it, if only to raise it again. A caller
    above that caught it went on and has returned.
    """
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
    if frame is None:
        return False
    # A frame that has returned stands at its RETURN instruction; one that an exception left does
    # not.
    while frame is not None:
        if opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN"):
            return False
        frame = frame.f_back
    return True


def of(error: BaseException) -> int:
    """Returns with which exit status an exception ends a program.

    Source: CPython, Python/pythonrun.c.
    """
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
