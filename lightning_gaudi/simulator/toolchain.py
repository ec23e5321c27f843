"""Finds the C++ compiler and what it needs from Python and torch, and calls it.

It is called directly: `torch.utils.cpp_extension` would import setuptools for seconds, and its lock
is a file that a killed build leaves behind for ever.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightning_gaudi.simulator.settings import SimulatorError

OLDEST_TORCH = (2, 6)
_CPP20_TORCH = (2, 12)
_OPTIMIZATION = "-O2"
_LONG_HEADERS = ("<torch/csrc/", "<ATen/ATen.h>")
_LIBRARIES = ("c10", "torch_cpu", "torch", "torch_python")
_PYBIND_NAMES = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")


@dataclass(frozen=True)
class Torch:
    """The installed torch, as far as it can be told without importing it."""

    root: Path
    version: str
    """With the variant, as in 2.13.0+cpu."""
    git_version: str

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = re.findall(r"\d+", self.version)[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler on this machine."""

    command: tuple[str, ...]
    identity: str
    """Changes when another compiler is chosen or this one is upgraded."""


def find_torch() -> Torch:
    """Finds the installed torch without importing it.

    Raises:
        SimulatorError: There is none, or it is older than the simulator can serve.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SimulatorError("The simulated HPU needs torch, which is not installed.")
    root = Path(spec.origin).parent
    # torch is not imported for its version, because `doctor` and `simulate` ask for it, too, where
    # importing torch would start the simulator or take seconds.
    found = dict(re.findall(r"^(\w+)\b.*? = '(.*)'$", (root / "version.py").read_text(), re.M))
    torch = Torch(root, found["__version__"], found.get("git_version", ""))
    if torch.release < OLDEST_TORCH:
        raise SimulatorError(
            f"torch {torch.version} is too old for the simulated HPU. Install torch "
            f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer."
        )
    return torch


def find_compiler() -> Compiler | None:
    """Returns the compiler that CXX names, else the system's."""
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        command = shlex.split(candidate)
        if command and (path := shutil.which(command[0])):
            # `c++` is a chain of links (Debian's alternatives); the real file changes with an
            # upgrade.
            real = Path(path).resolve()
            stat = real.stat()
            identity = f"{command[1:]} {real} {stat.st_size} {stat.st_mtime_ns}"
            return Compiler((path, *command[1:]), identity)
    return None


def require_compiler() -> Compiler:
    """Finds a compiler as `find_compiler` does, and checks that Python's headers are there too.

    Raises:
        SimulatorError: Something is missing; the message says what to install.
    """
    compiler = find_compiler()
    if compiler is None:
        asked = f" (CXX={os.environ['CXX']!r})" if os.environ.get("CXX") else ""
        raise SimulatorError(
            f"The simulated HPU is compiled on first use, but no C++ compiler was found{asked}. "
            "Install one (Debian: apt-get install g++), or set CXX to one."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise SimulatorError(
            f"The simulated HPU is compiled on first use, but {header} is missing. Install "
            "Python's headers (Debian: apt-get install python3-dev)."
        )
    return compiler


def compile_flags(torch: Torch, name: str) -> list[str]:
    """Returns the flags that do not depend on where things lie; they enter the cache's key."""
    standard = "c++20" if torch.release >= _CPP20_TORCH else "c++17"
    return [f"-std={standard}", _OPTIMIZATION, "-fPIC", "-pipe", f"-DTORCH_EXTENSION_NAME={name}"]


def source_files(sources: Path) -> list[Path]:
    """Returns the C++ files in `sources` and below, in the same order on every machine."""
    found = (path for path in sources.rglob("*") if path.suffix in (".cpp", ".h"))
    return sorted(found, key=lambda path: path.relative_to(sources).as_posix())


def compile_library(
    sources: Path, output: Path, flags: Sequence[str], torch: Torch, compiler: Compiler
) -> None:
    """Compiles and links the C++ files of `sources` into the Python extension `output`.

    They are compiled as two units at the same time, and not one by one: torch's headers take as
    long as all of the code.

    Args:
        sources: The folder that holds them, and that their `#include "..."` begin at; what they
            define must not clash, in anonymous namespaces either.
        output: The library to make, in a private folder.
        flags: What `compile_flags` says.
        torch: The torch to compile against.
        compiler: The compiler to call.

    Raises:
        SimulatorError: The compiler failed; the message is all that it said.
    """
    include = [torch.root / "include", torch.root / "include/torch/csrc/api/include"]
    include.append(Path(sysconfig.get_paths()["include"]))
    command = [*compiler.command, *flags, *_abi_flags(), "-iquote", str(sources)]
    command += [word for folder in include for word in ("-isystem", str(folder))]
    units = []
    for number, files in enumerate(_units(source_files(sources))):
        unit = output.with_name(f"{output.stem}-{number}.cpp")
        unit.write_text("".join(f'#include "{path}"\n' for path in files))
        units.append(unit)
    objects = [unit.with_suffix(".o") for unit in units]
    _run(*([*command, "-c", str(a), "-o", str(b)] for a, b in zip(units, objects, strict=True)))
    libraries = [f"-L{torch.root / 'lib'}", *(f"-l{library}" for library in _LIBRARIES)]
    _run([*command, "-shared", "-Wl,-s", *map(str, objects), "-o", str(output), *libraries])


def _units(files: Sequence[Path]) -> list[list[Path]]:
    """Divides the files to compile by how much of torch they read.

    A third of the code needs the headers of torch's Python bindings and process groups, which take
    longer to read than all that the rest needs: so both units take about as long.
    """
    units: tuple[list[Path], list[Path]] = ([], [])
    for path in (each for each in files if each.suffix == ".cpp"):
        text = path.read_text()
        reads_much = any(name in text for name in _LONG_HEADERS)
        units[reads_much or path.parent.name == "distributed"].append(path)
    return [each for each in units if each]


def _abi_flags() -> list[str]:
    """Returns what torch was built with, as its extensions must be for types to match."""
    import torch

    c = torch._C
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(c._GLIBCXX_USE_CXX11_ABI)}"]
    for name in _PYBIND_NAMES:
        # Newer torch has no such attributes, because its pybind11 derives the ABI itself.
        if (value := getattr(c, f"_PYBIND11_{name}", None)) is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return flags


def _run(*commands: Sequence[str]) -> None:
    """Runs compilers at the same time; ends all of them if it is interrupted.

    Raises:
        SimulatorError: One has failed; the message is all that it said.
    """
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # The compiler gets a session of its own, so that what it starts can be ended with it.
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    except BaseException:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        raise
    for process, output in zip(processes, said, strict=True):
        if process.returncode:
            raise SimulatorError(output)
