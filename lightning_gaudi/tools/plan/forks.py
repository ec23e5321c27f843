"""Forks a program that rehearses; each fork uses a card of its own, and reports what it found."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch

from lightning_gaudi._core.processes.rank_monitor import killed_by
from lightning_gaudi.simulator.rules.report import is_installed, is_library
from lightning_gaudi.untrusted import parse_json


class RehearsalError(RuntimeError):
    """Says that a program cannot be rehearsed, why, and where.

    Args:
        message: The reason.
        instead: The setting that the program's own error names, if it names one.
    """

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


class TookTooLongError(RehearsalError):
    """Says that a fork has reported nothing in the time that it had."""


class GoOn(BaseException):
    """Is raised in a fork that goes on as the program, so that the calls between return."""


class Fork:
    """A fork of this process, which has used no card, so that each fork uses its own.

    It computes on the host in one thread, as the workers of torch's loaders do. The threads that
    OpenMP has started before do not exist in a fork, and an operator that shares its work with them
    never returns.

    Args:
        act: What the fork does. It gets a `Teller`, which reports and ends it. It may raise `GoOn`,
            and leave that to the program.
    """

    def __init__(self, act: Callable[[Teller], NoReturn]) -> None:
        self._reader, writer = os.pipe()
        # Otherwise each fork would search all objects of the libraries for garbage again and again.
        gc.freeze()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            torch.set_num_threads(1)
            act(Teller(writer))
        os.close(writer)

    def found(self, most_s: float | None = None) -> dict[str, Any]:
        """Waits for the fork, and returns the fields of what it has found.

        Args:
            most_s: The most seconds to wait; None waits as long as it takes.

        Raises:
            RehearsalError: The program cannot be rehearsed.
            TookTooLongError: The fork takes longer.
        """
        with os.fdopen(self._reader, "rb") as file:
            # The report is a few thousand bytes, written at once at the end.
            has_told = select.select([file], [], [], most_s)[0]
            if not has_told:
                os.kill(self._pid, signal.SIGKILL)
            text = file.read()
        _, status = os.waitpid(self._pid, 0)
        if not has_told:
            raise TookTooLongError(f"it took more than {most_s:.0f} seconds.")
        try:
            found = parse_json(text or b"{}")
        except ValueError:  # the fork was killed while it wrote
            found = {}
        fields = found.get("found") if isinstance(found, dict) else None
        if not isinstance(fields, dict):
            told = found if isinstance(found, dict) else {}
            error = told.get("error") or _tell_end(os.waitstatus_to_exitcode(status))
            raise RehearsalError(error, str(told.get("instead", "")))
        return fields


class Teller:
    """Reports what a fork has found, and ends it.

    Args:
        writer: The end of a pipe.
    """

    def __init__(self, writer: int) -> None:
        self._writer = writer

    def end(self, find: Callable[[], Any]) -> NoReturn:
        """Reports the result of a function, a dataclass of plain data, or its error; then ends."""
        status = 1
        try:
            with os.fdopen(self._writer, "w") as file:
                found: dict[str, Any]
                try:
                    found = {"found": asdict(find())}
                    status = 0
                except BaseException as error:
                    instead = getattr(error, "instead", "")
                    found = {"error": explain(error)}
                    found |= {"instead": instead} if isinstance(instead, str) else {}
                file.write(json.dumps(found))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _tell_end(status: int) -> str:
    if status >= 0:
        return f"the process ended with status {status}"
    hint = ""
    if status == -signal.SIGKILL:
        hint = (
            ". A system does so when it is out of memory: see what else is running, or plan it on "
            "a machine with more"
        )
    return f"the process {killed_by(-status)}{hint}"


_guessed: dict[str, str] = {}


def note_guessed(place: str, operator: str) -> None:
    """Notes that the size of a result was guessed, which may be why the program fails later.

    Args:
        place: The user's line, as "train.py:42".
        operator: The operator, as torch names it.
    """
    _guessed.setdefault(place, operator)


def explain(error: BaseException) -> str:
    """Returns what went wrong, and at which of the user's lines."""
    kind = type(error).__name__
    place = _place_of_user(error)
    hint = ""
    if isinstance(error, NotImplementedError) and "dry card" not in str(error):
        hint = (
            " On a dry card what is large has no values: an operator whose result has a size that "
            "depends on them cannot be planned. Give it a size, or plan a smaller batch "
            "(--batch-size)."
        )
    elif _guessed:
        places = ", ".join(f"{place} ({operator})" for place, operator in _guessed.items())
        hint = (
            " Before that the size of a result depended on values that only a run has, and they "
            f"were taken for zeros: {places}. Give it a fixed size, or plan a smaller batch "
            "(--batch-size)."
        )
    return f"{kind}: {str(error).strip()}{hint}{place}"


def _place_of_user(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        is_of_library = is_installed(frame.filename) or any(map(is_library, path.parts))
        if not is_of_library and path.exists():
            return f" ({path}, line {frame.lineno})"
    return ""
