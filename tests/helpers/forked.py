"""Run Python in a process of its own that has torch already: 0.2 s instead of 1.5 s.

It is forked from one that has imported torch, and what Lightning imports of others, without the
device. So `import lightning` takes 0.4 s there instead of 4 s, and is still this process's own.
What tests the import of torch, or a process's end, needs `run_python`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .process import environment

_SERVER = Path(__file__).with_name("fork_server.py")
_START_TIMEOUT = 120
_MAX_SERVERS = 3  # of 300 MB each
_OF_EACH_FORK = ("PYTHONPATH", "LIGHTNING_GAUDI_SIMULATE")
"""What would change `sys.path` as the process starts that all forks share."""
_READ_AT_START = ("OMP_", "MKL_", "KMP_", "LD_", "PYTHON", "TORCH_COMPILE", "TORCHDYNAMO_")
"""How the names of the variables begin that Python and torch's libraries read only once."""


def fork_python(
    source: str,
    *args: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `source` (dedented) as `run_python` does, after `import torch`.

    Args:
        source: What to run.
        args: What `sys.argv` holds after the name.
        env: Changes to the environment, see `environment`; they are there when the device is
            loaded.
        cwd: The folder to run in.
        timeout: Seconds for all of it.
        check: Whether another exit status than 0 raises.

    Raises:
        AssertionError: It failed, or it did not end in time; with what it printed.
    """
    env = environment(env)
    env.pop("PYTEST_CURRENT_TEST", None)
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "stdout"), Path(folder, "stderr")
        for path in (out, errors):
            path.touch()
        request = {
            "source": textwrap.dedent(source),
            "args": args,
            "env": env,
            "cwd": str(cwd or Path.cwd()),
            "stdout": str(out),
            "stderr": str(errors),
        }
        status = _server(env).run(request, timeout)
        said = out.read_text(errors="replace"), errors.read_text(errors="replace")
    if status is None or (check and status != 0):
        how = f"ran past {timeout} s" if status is None else f"exited with {status}"
        raise AssertionError(
            f"{textwrap.dedent(source)[:200]} {how}\n--- stdout\n{said[0]}\n--- stderr\n{said[1]}"
        )
    return subprocess.CompletedProcess(["-c", *args], status, *said)


def fork_module(name: str, *args: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m name args...` as `fork_python` runs a source, with the same settings."""
    source = f"import runpy; runpy.run_module({name!r}, run_name='__main__')"
    return fork_python(source, *args, **settings)


class _Server:
    """A process that forks itself; serves one request after the other."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER)],
            env=env,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # to be ended with all that it has forked
        )
        if not self._answer(_START_TIMEOUT):
            raise AssertionError("A process of the tests could not import torch; see its stderr.")

    def run(self, request: Mapping[str, object], timeout: float) -> int | None:
        """The exit status of the fork; None if it did not end in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(request)}\n".encode())
        answer = self._answer(timeout)
        return int(answer) if answer else None

    def stop(self) -> None:
        """End the process and all that it has forked."""
        with self._process, contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether it can serve."""
        return self._process.poll() is None

    def _answer(self, timeout: float) -> str:
        """The next line that the process writes; without one in time it ends, and this is empty."""
        assert self._process.stdout is not None
        answer = ""
        try:
            readable, _, _ = select.select([self._process.stdout], [], [], timeout)
            answer = self._process.stdout.readline().decode().strip() if readable else ""
        finally:  # the time limit of a test is an exception
            if not answer:
                self.stop()
        return answer


_servers: dict[object, _Server] = {}
"""Those that were used last come last."""


def _server(env: Mapping[str, str]) -> _Server:
    """A process that has imported torch in an environment like `env`."""
    env = {name: value for name, value in env.items() if name not in _OF_EACH_FORK}
    key = frozenset(item for item in env.items() if item[0].startswith(_READ_AT_START))
    server = _servers.pop(key, None)
    if server is None or not server.is_running:
        while len(_servers) >= _MAX_SERVERS:
            _servers.pop(next(iter(_servers))).stop()
        server = _Server(env)
    _servers[key] = server
    return server


@atexit.register
def _stop() -> None:
    for server in _servers.values():
        server.stop()
