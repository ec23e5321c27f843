"""What the fork server of `start` imports before it forks: else each worker would.

It never has the vendor's package: a module that needs that is left to the workers.
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
"""What ends neither server nor workers: Ctrl-C, `scancel`, a container's stop and SLURM's notice go
to all processes of a program, which may need its workers to end as it wants to."""

MODULES = "_LIGHTNING_GAUDI_WORKER_MODULES"
"""The variable that names a file: a list of modules, and where to look for them, as JSON."""

OWNER = ".owner"
"""The suffix of a link beside that file; its text is the process that has written the file."""


def list_file(folder: Path, pid: int) -> Path:
    """Returns the file that a process writes for its server, in the folder of their sockets."""
    return folder / f"modules-{pid}.json"


def survive() -> None:
    """Goes on whatever is sent to all processes of a program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in SURVIVED[1:]:
        # Not ignored: programs that a worker starts would inherit that, and not end when told to.
        signal.signal(number, lambda *_: None)


def _serve(path: Path) -> None:
    """Imports the modules that the file names, and those that it will name before a fork."""
    # Blocked until now, so that they end no import. Workers inherit it.
    survive()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SURVIVED)
    atexit.register(_tidy, path, os.getpid())
    import_new = functools.partial(_import_new, path, os.getpid(), set())
    import_new()
    os.register_at_fork(before=import_new)


def _tidy(path: Path, server: int) -> None:
    """Removes what the process that had started the server would, had it not been killed."""
    if os.getpid() != server:
        return
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    for each in (path, path.with_suffix(".new"), Path(address or path)):
        with contextlib.suppress(OSError):
            each.unlink()
    remove_empty(path)


def remove_empty(path: Path) -> None:
    """Removes a folder in which nothing is left but the link of its owner.

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
    if os.getpid() != server:  # a worker that forks
        return
    with contextlib.suppress(OSError):  # somebody has tidied up: what is imported is enough
        names, sys.path[:] = json.loads(path.read_text())
        new = [name for name in names if name not in tried]
        tried.update(new)
        _import(new)


def _import(names: list[str]) -> None:
    if not names:
        return
    sys.modules["habana_frameworks"] = None  # type: ignore[assignment]
    for name in names:
        # Whatever fails here fails again in a worker, where the user is told.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    del sys.modules["habana_frameworks"]


if (_path := os.environ.pop(MODULES, None)) is not None:
    _serve(Path(_path))
