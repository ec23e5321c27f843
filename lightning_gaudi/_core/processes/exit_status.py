"""With which exit status the program ends, seen while it ends: `atexit` is not told.

An exception that nobody caught is in `sys.last_value`. A `SystemExit` is nowhere, so `sys.exit` is
watched where the vendor's package is. Whether one of them ends the program, and was not
caught on the way, is told by the frames that it has left: none of them has returned.
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
"""The last that was raised by the main thread, and has a status that is not 0."""


def noting(function: Callable[..., Any]) -> Any:
    """Returns a function that ends the program, such as `sys.exit`, of which it is noted how."""

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
    """Returns the exit status with which an error or an exit ends the program; None if none does.

    To be asked while the program ends: in `atexit`, or in what that runs. It is not known of a bare
    `raise SystemExit(...)` outside of what a strategy runs.
    """
    found = error()
    return None if found is None else of(found)


def error() -> BaseException | None:
    """Returns what ends the program with a status that is not 0; see `of_failure`."""
    if hasattr(sys, "ps1"):
        return None  # an interactive session shows errors, and goes on
    for found in (getattr(sys, "last_value", None), _noted):
        if isinstance(found, BaseException) and _has_ended_program(found) and of(found):
            return found
    return None


def in_one_line(error: BaseException) -> str:
    """Returns an error as one line; that of a DataLoader's worker is at the end of its text."""
    lines = str(error).strip().splitlines() or ["(it says nothing)"]
    text = lines[0].rstrip(".")
    if "Original Traceback" in str(error) and len(lines) > 1:
        text = f"{text}: {lines[-1]}"
    return f"{type(error).__name__}: {text[:500]}"


def _has_ended_program(error: BaseException) -> bool:
    """Tells whether an exception has left the outermost frame, and so was caught nowhere for good.

    Its traceback names the last frame that has handled it, if only to raise it again; whoever has
    caught it above went on, and returned.
    """
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
    if frame is None:
        return False
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
