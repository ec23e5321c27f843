"""Starts the processes that import torch, lets them run parts, and ends those that hang."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from lightning_gaudi._core.processes import end_group
from lightning_gaudi.simulator.settings import (
    EXEMPT,
    RULES,
    SERVER,
    SIMULATE,
    path_with_stand_in,
    server_name,
)

_START_S = 300
"""How long the import of torch may take, and the build of the simulated device at its first use."""
_ENDING_S = 10


@dataclass
class Outcome:
    """How the processes of a part ended."""

    statuses: Sequence[int] = ()
    """The exit statuses; a negative one is the number of the signal that ended the process."""
    has_hung: bool = False
    """Whether the processes were ended because they said nothing for too long."""
    said: str = ""
    """The traceback of the first process that raised."""

    @property
    def problem(self) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.has_hung:
            return "hung, and was ended"
        # When one of several processes raises, `run` kills the others. They are not to blame.
        own = -signal.SIGKILL if self.said else 0
        killed = next((status for status in self.statuses if status < 0 and status != own), 0)
        if killed:
            with contextlib.suppress(ValueError):
                return f"crashed ({signal.Signals(-killed).name})"
            return f"crashed (signal {-killed})"
        if any(self.statuses):
            lines = [line for line in self.said.strip().splitlines() if line.strip()]
            return f"failed: {lines[-1]}" if lines else f"ended with status {self.statuses}"
        return ""


@dataclass
class Worker:
    """A process that forks others to run parts in one mode; see `worker.py`.

    It is started at the first use, or before by `start`.

    Args:
        mode: "eager" or "lazy".
        module: The module that the process runs.
    """

    mode: str
    module: str = "lightning_gaudi.tools.verify.worker"
    _process: subprocess.Popen[str] | None = None
    _errors: IO[str] | None = None
    _output: int = -1
    _rest: bytes = b""
    _is_ready: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    """How the last part ended."""

    def run(
        self, part: str, options: Mapping[str, Any], *, num_ranks: int = 1, limit_s: float
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows of a part; afterwards `outcome` says how its processes ended.

        Args:
            part: The part's name in `parts.PARTS`.
            options: The part's arguments.
            num_ranks: The number of processes.
            limit_s: How long the processes may say nothing until they are ended.

        Raises:
            WorkerError: The process that imports torch does not start.
        """
        self.outcome = Outcome()
        self.start()
        self._wait_until_ready()
        assert self._process is not None
        assert self._process.stdin is not None
        wanted = {"part": part, "options": dict(options), "num_ranks": num_ranks}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        pids: list[int] = []
        deadline = time.monotonic() + limit_s
        while (message := self._next(deadline)) is not None or not self.outcome.has_hung:
            if message is None:
                self._end_hung(pids)
                deadline = time.monotonic() + _ENDING_S
                continue
            if message["is"] == "begun":
                pids = message["pids"]
            elif message["is"] == "failed":
                self.outcome.said = self.outcome.said or message["said"]
                _kill([pid for pid in pids if num_ranks > 1])  # the others wait for it
            elif message["is"] == "told":
                deadline = time.monotonic() + limit_s
                yield message
            elif message["is"] == "ended":
                self.outcome.statuses = message["statuses"]
                return
            elif message["is"] == "gone":
                self.outcome.statuses = [self._process.wait()]
                break
        # The worker has ended, or waits for killed processes that the driver holds in the kernel.
        # The next part gets another worker.
        self.close()

    def _end_hung(self, pids: Sequence[int]) -> None:
        self.outcome.has_hung = True
        _kill(pids)

    def start(self) -> None:
        """Starts the process if it does not run, without waiting for its imports."""
        if self._process is not None and self._process.poll() is None:
            return
        read, write = os.pipe()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (until `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, str(write)],
            env=environment(self.mode),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
            pass_fds=[write],
            start_new_session=True,
        )
        os.close(write)
        self._output, self._rest, self._is_ready = read, b"", False

    def _wait_until_ready(self) -> None:
        if self._is_ready:
            return
        message = self._next(time.monotonic() + _START_S)
        self._is_ready = message is not None and message["is"] == "ready"
        if not self._is_ready:
            assert self._errors is not None
            self._errors.seek(0)
            said = self._errors.read()
            self.close()
            last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
            raise WorkerError(f"the process that imports torch does not start: {last}")

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next message; None if none comes in time.

        It is "gone" once the process and all that it has forked have ended.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                data = os.read(self._output, 2**16)
                if not data:
                    return {"is": "gone"}
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:  # a process was killed while it wrote the line
            return {"is": "nothing"}
        return found if isinstance(found, dict) and "is" in found else {"is": "nothing"}

    def close(self) -> None:
        """Ends the process and all processes that it has forked."""
        if self._process is None:
            return
        end(self._process)
        for stream in (self._process.stdin, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        os.close(self._output)
        self._process = None


def end(process: subprocess.Popen[str]) -> None:
    """Kills a process that leads a group, with all processes of that group."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)
    end_group(process.pid)


class WorkerError(RuntimeError):
    """Says that a process that imports torch does not start, with its last message."""


def environment(mode: str) -> dict[str, str]:
    """Returns the environment of a process of a mode, without the variables of launchers.

    On a real card torch is kept from loading the vendor's backend by itself. A process that has
    loaded it must not be forked, so each forked process loads it.
    """
    env = {key: value for key, value in os.environ.items() if key not in _OF_RANKS}
    env |= {"PT_HPU_LAZY_MODE": "1" if mode == "lazy" else "0", "OMP_NUM_THREADS": "1"}
    if os.environ.get(SIMULATE):
        env |= {RULES: "warn", EXEMPT: "", "PYTHONPATH": path_with_stand_in()}
        env[SERVER] = server_name()  # all processes share the cards of one simulated server
    else:
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return env


_OF_RANKS = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "HLS_MODULE_ID", "TORCHELASTIC_RUN_ID"),
}


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
