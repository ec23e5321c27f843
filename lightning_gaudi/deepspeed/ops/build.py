"""Builds DeepSpeed's operations in C++ (`cpu_adam`) once, ahead of their first use.

DeepSpeed compiles one when an optimizer first asks for it, under torch's lock. That is a file which
a killed build leaves behind, and for which every later run waits silently and for ever. Here one
process compiles the operation in a private folder and with a time limit, and moves it into place in
one step. The lock is the operating system's, which ends with its process. DeepSpeed's own builder
calls the compiler, so what is compiled and how is DeepSpeed's decision.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import filelock
import torch

from lightning_gaudi._core.cache import cache_folder
from lightning_gaudi._patches.apply import enter, require
from lightning_gaudi.untrusted import make_folder, printable, trusted

from . import compiler

TIME_LIMIT_SECONDS = 1200.0
"""How long a build may take; on an idle machine it is half a minute."""

_CACHE_DIR = "LIGHTNING_GAUDI_CACHE_DIR"
_LOADED = "_loaded_ops"  # DeepSpeed's operations by name, beside its builders' base class
_POLL_SECONDS = 0.2
_MARGIN_SECONDS = 60.0  # others wait this much longer than a build, to hear that it has failed


class OpBuildError(RuntimeError):
    """An operation of DeepSpeed's cannot be built or loaded; the message says what to do."""


def provide(builder: Any, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> ModuleType:
    """Returns the operation of one of DeepSpeed's builders, and makes DeepSpeed load this build.

    Args:
        builder: An instance of a class of `deepspeed.ops.op_builder`, such as `CPUAdamBuilder`.
        time_limit_seconds: How long to build it, or to wait for a process that does.

    Returns:
        The Python module with the operation's functions.

    Raises:
        OpBuildError: It cannot be built or loaded, or another user may have put it there.
    """
    require("deepspeed-ops", type(builder), _LOADED)
    loaded = getattr(type(builder), _LOADED)
    if builder.name not in loaded and not _is_installed(builder):
        library = ensure_built(builder, time_limit_seconds)
        module = _load(builder.name, trusted(library, OpBuildError, _CACHE_DIR))
        enter("deepspeed-ops", loaded, builder.name, module)
    found: ModuleType = builder.load()
    return found


def ensure_built(builder: Any, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Path:
    """Returns the operation's library in the cache, built first if it is not there.

    Args:
        builder: See `provide`.
        time_limit_seconds: See `provide`.

    Raises:
        OpBuildError: It cannot be built.
    """
    build = _describe(builder)
    target = build.folder / f"{build.name}.so"
    if found := _find(build):
        return found
    _check_tools(build.name)
    start = time.time()
    with _explain_os_errors(build):
        trusted(make_folder(build.folder.parent), OpBuildError, _CACHE_DIR)
        with _locked(build, time_limit_seconds + _MARGIN_SECONDS):
            # The process that held the lock may have built it.
            if not target.exists():
                _refuse_to_fail_again(build, since=start)
                _build(build, target, time_limit_seconds)
    return target


class _Build(NamedTuple):
    name: str
    module: str
    kind: str
    """The builder's class."""
    key: str
    """Identifies all inputs of the build but the compiler."""

    @property
    def folder(self) -> Path:
        """The folder of the library."""
        identity = hashlib.sha256(compiler.identity().encode()).hexdigest()[:8]
        return _root() / f"{self.key}-{identity}"

    @property
    def log(self) -> Path:
        """The log of a failed build."""
        return self.folder.with_name(f"{self.folder.name}.log")


def _describe(builder: Any) -> _Build:
    import deepspeed

    digest = hashlib.sha256()
    parts = (torch.__version__, torch.version.git_version, deepspeed.__version__)
    for part in (*parts, EXTENSION_SUFFIXES[0], os.uname().machine, *builder.cxx_args()):
        digest.update(f"{part}\n".encode())
    for source in builder.sources():
        digest.update(Path(builder.deepspeed_src_path(source)).read_bytes())
    kind = type(builder)
    versions = f"{deepspeed.__version__}-torch-{torch.__version__}"
    key = f"{builder.name}-{versions}-{digest.hexdigest()[:16]}"
    return _Build(builder.name, kind.__module__, kind.__name__, key)


def _root() -> Path:
    return cache_folder("deepspeed").absolute()


def _find(build: _Build) -> Path | None:
    """Returns the cached library; without a compiler, one of any compiler."""
    folders = [build.folder] if compiler.is_there() else sorted(_root().glob(f"{build.key}-*"))
    libraries = (folder / f"{build.name}.so" for folder in folders)
    return next((library for library in libraries if library.exists()), None)


def _build(build: _Build, target: Path, time_limit_seconds: float) -> None:
    """Builds `target`; the caller holds its lock, so what others left unfinished is dead."""
    prefix = f"{build.folder.name}.building-"
    for stale in build.folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    for lock, age_seconds in compiler.locks(build.name):
        if age_seconds > TIME_LIMIT_SECONDS:
            _say(
                f"{lock} is {age_seconds / 60:.0f} minutes old: a build of {build.name} was killed "
                "and left it. Remove it, or programs that use DeepSpeed without lightning-gaudi "
                "will wait for it for ever."
            )
    _say(f"building DeepSpeed's {build.name}, once, about half a minute ...")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=build.folder.parent, ignore_cleanup_errors=True
    ) as private:
        try:
            library = compiler.run(
                build.module, build.kind, build.name, Path(private), time_limit_seconds
            )
        except compiler.CompilerError as error:
            build.log.write_text(f"{error}\n{error.said}")
            raise OpBuildError(_explain(build, str(error))) from None
        with library.open("rb") as file:
            os.fsync(file.fileno())
        # `trusted` refuses to load a library that others may write to, which the umask may allow.
        library.chmod(library.stat().st_mode & ~0o022)
        build.folder.mkdir(0o755, exist_ok=True)
        library.replace(target)
    _say(f"built DeepSpeed's {build.name} in {time.monotonic() - start:.0f} s")


def _explain(build: _Build, reason: str) -> str:
    return (
        f"DeepSpeed's {build.name}, which CPU offload needs, could not be built for torch "
        f"{torch.__version__} with {compiler.command()}: {reason} (all of it: {build.log}). It "
        "takes a C++ compiler that torch supports (g++ 11 or later), Python's headers and ninja. "
        "To train without it, leave the optimizer on the card (offload_optimizer=False)."
    )


def _refuse_to_fail_again(build: _Build, since: float) -> None:
    """Raises the error of another process that has failed while we waited for it."""
    if build.log.exists() and build.log.stat().st_mtime >= since:
        reason = printable(build.log.read_text("utf-8", errors="replace").partition("\n")[0])
        raise OpBuildError(_explain(build, reason))


def _check_tools(name: str) -> None:
    if not compiler.is_there():
        raise OpBuildError(
            f"CPU offload needs DeepSpeed's {name}, which is compiled on first use, but there is "
            f"no C++ compiler {compiler.command()!r}. Install one (Debian: apt-get install g++), "
            "set CXX to one, or leave the optimizer on the card (offload_optimizer=False)."
        )
    if not compiler.has("ninja"):
        raise OpBuildError(
            f"CPU offload needs DeepSpeed's {name}, which is compiled on first use, but ninja is "
            "missing. Install it (pip install ninja), or leave the optimizer on the card "
            "(offload_optimizer=False)."
        )


def _is_installed(builder: Any) -> bool:
    """Returns whether it was built for the HPU with DeepSpeed itself (DS_BUILD_CPU_ADAM=1)."""
    from deepspeed.git_version_info import accelerator_name, installed_ops

    return bool(installed_ops.get(builder.name)) and accelerator_name == "hpu"


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise OpBuildError(
            f"DeepSpeed's {name} in {path.parent} does not load: {error}. Remove that folder to "
            "build it anew."
        ) from error
    return module


@contextlib.contextmanager
def _locked(build: _Build, time_limit_seconds: float) -> Iterator[None]:
    lock = filelock.FileLock(build.folder.with_name(f"{build.folder.name}.lock"))
    try:
        lock.acquire(timeout=time_limit_seconds, poll_interval=_POLL_SECONDS)
    except filelock.Timeout as error:
        raise OpBuildError(
            f"Another process has been building DeepSpeed's {build.name} for more than "
            f"{time_limit_seconds:.0f} s and holds {lock.lock_file}. End that process, or set "
            f"{_CACHE_DIR} to another folder."
        ) from error
    except NotImplementedError as error:
        raise OpBuildError(
            f"The file system of {build.folder.parent} cannot lock files. Set {_CACHE_DIR} to a "
            "folder on a local disk."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explain_os_errors(build: _Build) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpBuildError(
            f"DeepSpeed's {build.name} cannot be built in {build.folder.parent}: "
            f"{error.strerror or error}. Set {_CACHE_DIR} to a folder that can be written and has "
            "100 MB of free space."
        ) from error


def _say(message: str) -> None:
    print(f"lightning-gaudi: {printable(message, lines=True)}", file=sys.stderr, flush=True)
