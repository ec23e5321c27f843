"""Runs in the fork server of `start`, and imports modules there once for all workers.

The server never imports the vendor's package; modules that need it are left to the workers.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

SURVIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end neither server nor workers. Ctrl-C, `scancel`, a container's stop and SLURM's
notice go to all processes of a program, which may need its workers to end in good order."""

MODULES = "_LIGHTNING_GAUDI_WORKER_MODULES"
"""The variable with the path of a JSON file: modules to import, and `sys.path`."""

OWNER = ".owner"
"""The suffix of a link beside that file, whose target describes the process that wrote it."""


def list_file(folder: Path, pid: int) -> Path:
    """Returns the file that a process writes for its server, in the folder of their sockets."""
    return folder / f"modules-{pid}.json"


def survive() -> None:
    """Makes this process survive signals that go to all processes of a program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in SURVIVED[1:]:
        # A handler, since SIG_IGN would be inherited by programs that a worker starts.
        signal.signal(number, lambda *_: None)


def _serve(path: Path) -> None:
    """Imports the modules that the file names, and those that it will name before a fork."""
    # The signals were blocked until now, so that they could not end an import. Workers inherit the
    # handlers.
    survive()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SURVIVED)
    atexit.register(_tidy, path, os.getpid())
    import_new = functools.partial(_import_new, path, os.getpid(), set())
    import_new()
    os.register_at_fork(before=import_new)


def _tidy(path: Path, server: int) -> None:
    """Removes the files that the starting process would have removed if it was not killed."""
    if os.getpid() != server:
        return
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    for each in (path, path.with_suffix(".new"), Path(address or path)):
        with contextlib.suppress(OSError):
            each.unlink()
    remove_empty(path)


def remove_empty(path: Path) -> None:
    """Removes a folder that holds nothing but the link of its owner.

    Server and workers each call this as they end, so that the last of them does it.

    Args:
        path: The `list_file` in that folder, which may be gone.
    """
    owner = path.with_suffix(OWNER)
    with contextlib.suppress(OSError):
        if [*path.parent.iterdir()] == [owner]:
            owner.unlink()
            path.parent.rmdir()


def _import_new(path: Path, server: int, tried: set[str]) -> None:
    # A worker inherits the fork hook, and may fork itself.
    if os.getpid() != server:
        return
    # If the file is gone, what has been imported is enough.
    with contextlib.suppress(OSError):
        names, sys.path[:] = json.loads(path.read_text())
        new = [name for name in names if name not in tried]
        tried.update(new)
        _import(new)


def _import(names: list[str]) -> None:
    if not names:
        return
    # None makes every import of it fail, so that nothing can acquire a card here.
    sys.modules["habana_frameworks"] = None  # type: ignore[assignment]
    for name in names:
        # Whatever fails here fails again in a worker, where the user is told.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    del sys.modules["habana_frameworks"]


if (_path := os.environ.pop(MODULES, None)) is not None:
    _serve(Path(_path))
