"""Programs started by a test, their output, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.process import environment

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "program.py"

_UNSET = (
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "HLS_MODULE_ID", "ID", "HABANA_VISIBLE_MODULES"),
)


class Started:
    """A program in a session of its own, so that what it leaves behind can be found."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        changes = {"LIGHTNING_GAUDI_SIMULATE": "8", "PYTHONPATH": str(ROOT)}
        self.folder = folder
        self._output = (folder / f"output{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            command,
            env=environment(dict.fromkeys(_UNSET) | changes | dict(env or {})),
            cwd=folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A shell has its background jobs, such as a test run, ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def output(self) -> str:
        """What it has written so far, on both channels."""
        return Path(self._output.name).read_text()

    def wait(self, timeout: float = 120) -> int:
        """Its exit status; minus the signal that ended it."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still runs after {timeout} s:\n{self.output}") from error

    def wait_for(self, name: str, timeout: float = 120) -> None:
        """Wait until it has written the file."""
        end = time.monotonic() + timeout
        while not (self.folder / name).exists():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, f"no {name} after {timeout} s:\n{self.output}"
            time.sleep(0.05)

    def wait_for_trouble(self, timeout: float = 120) -> float:
        """Wait for what TROUBLE asks for, and return the time at which it began."""
        end = time.monotonic() + timeout
        while not (match := re.search(r"trouble at ([\d.]+)", self.output)):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, f"no trouble after {timeout} s:\n{self.output}"
            time.sleep(0.05)
        return float(match[1])

    def wait_for_all_to_end(self, timeout: float) -> None:
        """Wait for the program and all that it has started."""
        end = time.monotonic() + timeout
        while left := self.left():
            assert time.monotonic() < end, f"{left} after {timeout} s:\n{self.output}"
            time.sleep(0.1)
        self.wait(timeout=1)

    def left(self) -> list[str]:
        """The commands of its session that still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    if command:  # one that was killed has none any more, before it is a zombie
                        found.append(f"{folder.name}: {command}")
        return found

    def rank(self, local_rank: int) -> int:
        """The process of a local rank other than 0, which its launcher has started."""
        wanted = f"LOCAL_RANK={local_rank}"
        for line in self.left():
            pid = int(line.partition(":")[0])
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            if wanted in variables and str(PROGRAM) in line:
                return pid
        raise AssertionError(f"no process has {wanted}: {self.left()}")

    def kill(self) -> None:
        """End it and all that is left of it."""
        self._output.close()
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, env: Mapping[str, str | None] | None = None
) -> Iterator[Started]:
    """Start a program; nothing of it is left after this context."""
    program = Started(command, folder, env)
    try:
        yield program
    finally:
        program.kill()


def program(folder: Path, **settings: Any) -> list[str]:
    """The command that runs `program.py` with settings of the Trainer's."""
    return [sys.executable, str(PROGRAM), str(folder), json.dumps(settings)]


def found(folder: Path) -> list[dict[str, Any]]:
    """What the ranks found, by rank."""
    paths = sorted(folder.glob("rank*.json"), key=lambda path: int(path.stem[4:]))
    return [json.loads(path.read_text()) for path in paths]


def run_program(
    folder: Path,
    *launcher: str,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Run `program.py`, which must succeed and leave nothing behind; what the ranks found."""
    with started([*launcher, *program(folder, **settings)], folder, env) as run:
        assert run.wait(timeout) == 0, run.output
        run.wait_for_all_to_end(10)  # what Python has spawned beside the ranks ends by itself
    return found(folder)
