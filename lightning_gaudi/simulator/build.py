"""Builds the simulated device for the installed torch, once, and loads it.

A build is kept in the cache under a key of all that went into it. It is made in a private folder
and moved into place in one step, so no process ever sees half of one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from lightning_gaudi.simulator import toolchain
from lightning_gaudi.simulator.settings import CACHE_DIR, SimulatorError, cache_dir
from lightning_gaudi.untrusted import make_folder, printable, trusted

MODULE = "_hpu_sim"
SOURCES = Path(__file__).parent / "csrc"
_TYPICAL_SECONDS = 60
_POLL_SECONDS = 0.2
_CPU_TORCH = "a CPU build of torch, versions 2.9 to 2.15, is known to work"


def load(sources: Path = SOURCES, name: str = MODULE) -> ModuleType:
    """Loads the extension `name`, after building it if need be, into `sys.modules`.

    Args:
        sources: The folder with its C++ files, and folders of them.
        name: Its Python name.

    Raises:
        SimulatorError: It cannot be built or loaded, or another user may have put it there.
    """
    path = trusted(ensure_built(sources, name), SimulatorError, CACHE_DIR)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise SimulatorError(
            f"The simulated HPU in {path.parent} does not load: {error}. Remove that folder to "
            f"build it anew; {_CPU_TORCH}."
        ) from error
    sys.modules[name] = module
    return module


def ensure_built(sources: Path = SOURCES, name: str = MODULE) -> Path:
    """Returns the built extension in the cache, built first if it is not there.

    Raises:
        SimulatorError: It cannot be built.
    """
    if found := find_built(sources, name):
        return found
    torch = toolchain.find_torch()
    flags = toolchain.compile_flags(torch, name)
    prefix = _prefix(torch, flags, sources)
    compiler = toolchain.require_compiler()
    target = _folder(prefix, compiler) / f"{name}.so"
    with _explain_os_errors():
        trusted(make_folder(target.parent.parent), SimulatorError, CACHE_DIR)
        with _locked(_beside(target.parent, ".lock")):
            # The process that held the lock may have built it while this one waited.
            if not target.exists():
                _build(sources, target, flags, torch, compiler)
    return target


def find_built(sources: Path = SOURCES, name: str = MODULE) -> Path | None:
    """Returns the built extension in the cache, if it is there.

    Raises:
        SimulatorError: The simulator does not serve this system or this torch.
    """
    if sys.platform != "linux":
        raise SimulatorError(f"The simulated HPU runs on Linux; this is {sys.platform}.")
    torch = toolchain.find_torch()
    prefix = _prefix(torch, toolchain.compile_flags(torch, name), sources)
    return _find(prefix, toolchain.find_compiler(), name)


def _prefix(torch: toolchain.Torch, flags: Sequence[str], sources: Path) -> str:
    """Returns what the folder of a build begins with, whichever compiler made it."""
    return f"torch-{torch.version}-{_key(torch, flags, sources)}-"


def _find(prefix: str, compiler: toolchain.Compiler | None, name: str) -> Path | None:
    """Returns the cached build: this compiler's, or any compiler's where none is installed."""
    if compiler is not None:
        candidates = [_folder(prefix, compiler)]
    else:
        candidates = sorted(_root().glob(f"{prefix}*"))
    return next((f / f"{name}.so" for f in candidates if (f / f"{name}.so").exists()), None)


def _build(
    sources: Path,
    target: Path,
    flags: Sequence[str],
    torch: toolchain.Torch,
    compiler: toolchain.Compiler,
) -> None:
    """Builds `target`; the caller holds its lock."""
    folder = target.parent
    # A build that was killed has left its private folder; with the lock held, nobody else is
    # building.
    for stale in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(stale, ignore_errors=True)
    about = f"once, about {_TYPICAL_SECONDS} s"
    _say(f"building the simulated HPU for torch {torch.version}, {about} ...")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=f"{folder.name}.building-", dir=folder.parent, ignore_cleanup_errors=True
    ) as private:
        output = Path(private) / target.name
        try:
            toolchain.compile_library(sources, output, flags, torch, compiler)
        except SimulatorError as error:
            raise SimulatorError(_explain(str(error), torch, folder, compiler)) from None
        _sync(output)
        # `trusted` loads no library that others may write, which a umask of 0 would make it.
        output.chmod(output.stat().st_mode & ~0o022)
        make_folder(folder)
        # A rename is atomic, because the private folder is on the same file system.
        output.replace(target)
    _say(f"built the simulated HPU in {time.monotonic() - start:.0f} s")


def _key(torch: toolchain.Torch, flags: Sequence[str], sources: Path) -> str:
    """Returns a hash of all that goes into a build, but for the compiler."""
    digest = hashlib.sha256()
    for part in (torch.version, torch.git_version, EXTENSION_SUFFIXES[0], os.uname().machine):
        digest.update(f"{part}\n".encode())
    for part in flags:
        digest.update(f"{part}\n".encode())
    for path in toolchain.source_files(sources):
        name, content = path.relative_to(sources).as_posix(), path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _root() -> Path:
    return cache_dir() / "simulator"


def _folder(prefix: str, compiler: toolchain.Compiler) -> Path:
    identity = hashlib.sha256(compiler.identity.encode()).hexdigest()[:8]
    return _root() / f"{prefix}{identity}"


def _beside(folder: Path, suffix: str) -> Path:
    return folder.parent / f"{folder.name}{suffix}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock on `path`, and says so where another process has it."""
    import filelock

    # The lock is the operating system's (flock), which ends with its process: a build that was
    # killed does not block the next one, as a file that only exists would.
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        _say("waiting for another process that builds the simulated HPU ...")
        lock.acquire(poll_interval=_POLL_SECONDS)
    except NotImplementedError as error:
        raise SimulatorError(
            f"The file system of {path.parent} cannot lock files. Set {CACHE_DIR} to a folder on a "
            "local disk."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explain_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SimulatorError(
            f"The simulated HPU cannot be built in {_root()}: {error.strerror or error}. Set "
            f"{CACHE_DIR} to a folder that can be written and has 100 MB of free space."
        ) from error


def _explain(
    output: str, torch: toolchain.Torch, folder: Path, compiler: toolchain.Compiler
) -> str:
    """Returns in one line why a compiler failed, and keeps all that it said in a file."""
    # A full disk is not the compiler's fault: `_explain_os_errors` says what to do about it.
    if os.strerror(errno.ENOSPC) in output:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    log = _beside(folder, ".log")
    log.write_text(output)
    lines = output.strip().splitlines() or ["the compiler was killed; is there enough memory?"]
    reason = next((line for line in lines if "error" in line.lower()), lines[-1])
    return (
        f"The simulated HPU could not be compiled for torch {torch.version} with "
        f"{compiler.command[0]}: {reason.strip()} (all of it: {log}). A newer compiler may help "
        f"(g++ 11 or later), or another torch: {_CPU_TORCH}."
    )


def _sync(path: Path) -> None:
    """Writes the file through to the disk, so that its name never stands for a part of it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _say(message: str) -> None:
    print(f"lightning-gaudi: {printable(message, lines=True)}", file=sys.stderr, flush=True)
