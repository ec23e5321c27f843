"""Fresh virtual environments for scripts/check_wheel.py, and commands in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt").resolve()
"""The versions that pip installs."""
_TIMEOUT_S = 900


class ProofError(Exception):
    """Something that should be true of the wheel is not."""


class Environment:
    """A virtual environment in the temporary folder."""

    def __init__(self, folder: Path, home: Path, like: Environment | None = None) -> None:
        """Make it; `like` gives it its packages.

        They are linked, not copied: pip and Python replace files, and never write into one.
        """
        self.bin, self._home = folder / "bin", home
        venv.create(folder, with_pip=False, symlinks=True)
        if like is not None:
            ours, theirs = self._packages(), like._packages()
            shutil.copytree(theirs, ours, copy_function=os.link, dirs_exist_ok=True)
            for script in like.bin.iterdir():
                self._take_script(script, like.bin)

    def _packages(self) -> Path:
        (folder,) = self.bin.parent.glob("lib/python*/site-packages")
        return folder

    def _take_script(self, script: Path, old: Path) -> None:
        """Copy a script that starts this environment's Python."""
        target = self.bin / script.name
        if not target.exists() and (text := script.read_bytes()).startswith(f"#!{old}".encode()):
            target.write_bytes(text.replace(f"{old}".encode(), f"{self.bin}".encode()))
            target.chmod(0o755)

    def install(self, *requirements: str) -> None:
        """Have pip install, in the versions of scripts/constraints.txt."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "-q"]
        env = os.environ | {"PIP_CONSTRAINT": str(CONSTRAINTS)}
        call([*pip, "--no-compile", *requirements], env)  # what is imported is compiled then

    def distributions(self) -> set[str]:
        """Name and version of each, as in `torch-2.13.0`."""
        return {path.stem for path in self._packages().glob("*.dist-info")}

    def run(self, *command: str, cwd: Path, status: int = 0) -> str:
        """Returns what a command says in an environment of PATH and HOME alone."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", os.defpath)])
        return call(command, {"PATH": path, "HOME": str(self._home)}, cwd, status)


def call(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, status: int = 0
) -> str:
    """Returns what a command says, errors included.

    Raises:
        ProofError: Its status is another one, or it takes too long.
    """
    words = " ".join(command)
    try:
        result = subprocess.run(
            command,
            env=dict(env),
            cwd=cwd,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise ProofError(f"{words}: not done after {_TIMEOUT_S} s\n{error.output}") from error
    if result.returncode != status:
        raise ProofError(f"{words}: status {result.returncode}\n{result.stdout}")
    return result.stdout
