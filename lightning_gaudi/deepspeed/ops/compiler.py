"""Compiles one of DeepSpeed's operations as torch does, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

_COMPILE = """\
import importlib, sys
getattr(importlib.import_module(sys.argv[1]), sys.argv[2])().jit_load(verbose=False)
"""


class CompilerError(Exception):
    """An operation was not compiled. The message is one line; `said` holds the whole output."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(reason)
        self.said = said


def run(module: str, kind: str, name: str, folder: Path, time_limit_seconds: float) -> Path:
    """Compiles an operation by DeepSpeed's builder, and loads it to see that it works.

    Args:
        module: That of the builder.
        kind: The builder's class.
        name: The operation's.
        folder: A private folder to build in.
        time_limit_seconds: The time after which it is killed with all its processes.

    Returns:
        The library.

    Raises:
        CompilerError: It failed, or took too long.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPILE, module, kind],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said, _ = process.communicate(timeout=time_limit_seconds)
    except subprocess.TimeoutExpired:
        reason = f"it took more than {time_limit_seconds:.0f} s"
        raise CompilerError(reason, _end(process)) from None
    except BaseException:
        _end(process)
        raise
    library = folder / name / f"{name}.so"
    if process.returncode or not library.exists():
        lines = said.strip().splitlines() or ["the compiler was killed; is there enough memory?"]
        reason = next((line for line in lines if "error:" in line), lines[-1])
        raise CompilerError(reason.strip(), said)
    return library


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a process that needs torch and DeepSpeed, but no device."""
    return os.environ | {
        "DS_ACCELERATOR": "cpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TORCH_EXTENSIONS_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "PATH": _search_path(),
    }


def _end(process: subprocess.Popen[str]) -> str:
    """Kills a process with all its descendants.

    Killing its group would not do, since ninja puts each compiler into a group of its own.
    """
    import psutil  # DeepSpeed requires it; Lightning alone does not

    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for each in (*parent.children(recursive=True), parent):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    return process.communicate()[0]


def has(program: str) -> bool:
    """Returns whether a program is installed; arguments after its name are ignored."""
    words = shlex.split(program)
    return bool(words) and shutil.which(words[0], path=_search_path()) is not None


def is_there() -> bool:
    """Returns whether there is a compiler."""
    return has(command())


def command() -> str:
    """Returns the compiler that torch calls, as CXX names it."""
    return os.environ.get("CXX", "c++")


def identity() -> str:
    """Returns a text that changes with the choice of the compiler and with its upgrades."""
    words = shlex.split(command())
    path = shutil.which(words[0]) if words else None
    if path is None:
        return command()
    real = Path(path).resolve()
    return f"{words[1:]} {real} {real.stat().st_size} {real.stat().st_mtime_ns}"


def _search_path() -> str:
    """Returns PATH with the folder of pip's programs, so that ninja is found without activation."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])


def locks(name: str) -> Iterator[tuple[Path, float]]:
    """Yields the lock files of torch for an operation, and their ages in seconds.

    Source: torch 2.13, `torch/utils/cpp_extension.py`, which never checks whether their owner
    lives.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch_extensions"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or default).expanduser()
    for lock in (root / name / "lock", *root.glob(f"*/{name}/lock")):
        with contextlib.suppress(OSError):
            yield lock, time.time() - lock.stat().st_mtime
