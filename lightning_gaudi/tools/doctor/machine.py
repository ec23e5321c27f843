"""Reads all that the checks look at; tests put a recorded machine in its place."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_TIMEOUT_S = 60


class Answer(NamedTuple):
    """What a command has answered."""

    text: str
    """Its standard output."""
    problem: str = ""
    """Why there is no answer to rely on: the command was not found, failed or hung. Else empty."""


class Machine:
    """This machine, as far as the checks look at it. Each command is run only once."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Looks at this machine as a process with that environment would."""
        self.environment = environment
        self._answers: dict[tuple[str, ...], Answer] = {}

    def without_home(self, text: str) -> str:
        """Returns a text with `~` for this user's folder, because reports are sent to others."""
        home = self.environment.get("HOME", "").rstrip("/")
        return text.replace(home, "~") if len(home) > 3 else text

    def run(self, *command: str, timeout_s: float = _TIMEOUT_S) -> Answer:
        """Returns the answer of a command."""
        if command not in self._answers:
            self._answers[command] = _run(command, self.environment, timeout_s)
        return self._answers[command]

    def read(self, path: str) -> str | None:
        """Returns the text of a file of the system's, stripped; None if it cannot be read."""
        try:
            return Path(path).read_text(errors="replace").strip()
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """Returns what is in a folder of the system's, in order; nothing if it cannot be read."""
        try:
            return sorted(path.name for path in Path(folder).iterdir())
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Returns whether there is such a file or folder."""
        return os.path.exists(path)  # noqa: PTH110 (never raises)

    def total_bytes(self, path: str) -> int | None:
        """Returns the size of a file system; None if there is none."""
        with contextlib.suppress(OSError):
            return shutil.disk_usage(path).total
        return None

    def free_bytes(self, path: str) -> int | None:
        """Returns what a user may still write where `path` is; None if that is nowhere."""
        with contextlib.suppress(OSError):
            return shutil.disk_usage(path).free
        return None

    def version(self, package: str) -> str | None:
        """Returns the installed version of a Python package; None if it is not installed."""
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def requirements(self) -> Iterable[str]:
        """Returns what this package has declared that it needs, as pip reads it."""
        try:
            return importlib.metadata.requires("lightning-gaudi") or []
        except importlib.metadata.PackageNotFoundError:
            return []


def _run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A session of its own lets `end` kill all that the command has started.
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer("", f"there is no {name} on the PATH")
    except OSError as error:
        return Answer("", f"{name}: {error.strerror or error}")
    try:
        text, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end(process)
        return Answer("", f"{name} did not answer within {timeout_s:.0f} s")
    except BaseException:
        end(process)
        raise
    if process.returncode:
        last = (said.strip() or text.strip() or "no message").splitlines()[-1]
        return Answer(text, f"{name} failed with status {process.returncode}: {last}")
    return Answer(text)


def end(process: subprocess.Popen[str]) -> None:
    """Kills a process that leads a session, and all in that session, and waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A driver that hangs keeps a process in the kernel, where no signal ends it: it is left behind
    # after a while.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def python() -> str:
    """Returns the interpreter that runs the doctor, and so the one that is examined."""
    return sys.executable
