"""Run Python in a process of its own, as a user would start it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

# What a developer's shell may have set and a test must not inherit.
_UNSET = (
    *("PT_HPU_LAZY_MODE", "LIGHTNING_GAUDI_AUTOLOAD"),
    *("LIGHTNING_GAUDI_SIMULATE_CARD", "LIGHTNING_GAUDI_SIMULATE_SERVER"),
    "LIGHTNING_GAUDI_SIMULATE_RELEASE",
)


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a child process: one simulated card, then `changes`; None unsets."""
    env = {name: value for name, value in os.environ.items() if name not in _UNSET}
    env |= {"LIGHTNING_GAUDI_SIMULATE": "1", "OMP_NUM_THREADS": "1"}
    for name, value in (changes or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `command`; on failure (if `check`) raise with both of its outputs."""
    result = subprocess.run(
        command,
        env=environment(env),
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and result.returncode:
        raise AssertionError(
            f"{' '.join(command)[:200]} exited with {result.returncode}\n"
            f"--- stdout\n{result.stdout}\n--- stderr\n{result.stderr}"
        )
    return result


def run_python(
    source: str,
    *args: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `source` (dedented) with this interpreter; see `run`."""
    command = [sys.executable, "-c", textwrap.dedent(source), *args]
    return run(command, env=env, cwd=cwd, timeout=timeout, check=check)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its status for a parent that does not ask."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
