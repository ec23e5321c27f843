"""Starts the workers of a DataLoader without forking the process that holds a card.

The driver does not survive a fork. So another process forks the workers: a fork server of
`multiprocessing`, which is started afresh and holds no card. Unlike that module's own server, it

- imports torch and the data sets' modules once and not in each worker, and neither the vendor's
  package nor the simulator;
- does not make workers run the program again (see `pickling`);
- lets workers survive Ctrl-C and SIGTERM, which go to all processes of a program, and end when the
  process that they work for dies. Server and workers then remove the folder in TMPDIR with their
  sockets, which a killed process cannot. If that was killed before it had a server, or together
  with it, the next process that starts a server removes the folder.

Source: Model-References `torchvision/main.py` ("fork" does not work, "forkserver" and "spawn" do);
optimum-habana, pull request 1721 (forked workers hang or die with release 1.17 and 1.19).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import forkserver, popen_forkserver, resource_tracker, spawn, util
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen
from multiprocessing.process import BaseProcess, parent_process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling, worker as torch_worker

from .. import processes
from . import pickling, server

_WITHOUT_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LIGHTNING_GAUDI_SIMULATE": None}
"""Changes to the environment of the server; workers get the environment of their program."""

_MAX_NESTED = 3
_FOR_WANT = (AttributeError, LookupError, NameError, ImportError, NotImplementedError)

_server = forkserver.ForkServer()
# `server` comes first: it sets the signal handlers, and imports what the list file names.
_server.set_forkserver_preload([server.__name__, "torch.utils.data", __name__])
_modules: dict[str, None] = {}
"""The modules that the server was told to import, in order."""
_is_started_ahead = True


def start_server_when_needed() -> None:
    """Starts the server only with the first worker from now on, since there may never be one."""
    global _is_started_ahead
    _is_started_ahead = False


def start_server_ahead(things: Iterable[Any] = ()) -> None:
    """Starts the server for workers to come, unless `start_server_when_needed` was called."""
    if _is_started_ahead:
        start_server(things)


def start_server(things: Iterable[Any] = ()) -> None:
    """Starts the server in the background, so that the first workers need not wait.

    Args:
        things: Data sets and functions that workers will get. The server imports the modules that
            define them, as it starts or before its next fork.
    """
    # Before signals are blocked below, since starting the tracker unblocks some of them.
    resource_tracker.ensure_running()
    path = server.list_file(Path(util.get_temp_dir()), os.getpid())
    if not (owner := path.with_suffix(server.OWNER)).is_symlink():
        owner.symlink_to(processes.describe(os.getpid()))
        _remove_left(path.parent.parent)
    _modules.update(dict.fromkeys(_modules_of(things)))
    written = path.with_suffix(".new")
    written.write_text(json.dumps([list(_modules), sys.path]))
    # A rename, since the server may be reading the file.
    written.replace(path)
    # The server inherits the mask, and unblocks the signals once it handles them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, server.SURVIVED)
    try:
        with _changed_environment({**_WITHOUT_DEVICE, server.MODULES: str(path)}):
            _server.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _remove_left(temporary: Path) -> None:
    """Removes the socket folders of this user's processes that were killed.

    A folder in which a server or a worker still has a socket is left to them. Source:
    proc_pid_net(5), on /proc/net/unix.
    """
    with contextlib.suppress(OSError):
        in_use = Path("/proc/net/unix").read_bytes()  # names that anybody has given to sockets
        for folder in temporary.glob("pymp-*"):
            if os.fsencode(f" {folder}/") not in in_use and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)  # another process does the same


def _is_left(folder: Path) -> bool:
    """Returns whether a folder is this user's and all its owners have ended."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        owners = [each.readlink() for each in folder.glob(f"*{server.OWNER}")]
    except OSError:
        return False
    return bool(owners) and all(processes.has_died(str(owner)) for owner in owners)


def _modules_of(things: Iterable[Any]) -> Iterator[str]:
    """Yields the modules that define objects and the data sets and functions within them."""
    for _ in range(_MAX_NESTED):
        things = [thing for thing in things if thing is not None]
        yield from (getattr(thing, "__module__", type(thing).__module__) for thing in things)
        # Of a Subset or a loader of ours, of a partial function, of a bound method.
        names = ("dataset", "collate", "func", "__self__")
        things = [getattr(thing, name, None) for thing in things for name in names]


@contextlib.contextmanager
def _changed_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    _update(changes)
    try:
        yield
    finally:
        _update(before)


def _update(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Worker(ForkServerProcess):
    """The process object of a worker."""

    @staticmethod
    def _Popen(process: Any) -> _Start:  # noqa: N802
        return _Start(process)

    def run(self) -> None:
        """Runs the worker, unless its parent died before torch could begin to watch it."""
        parent = parent_process()
        if parent is not None and parent.pid is not None and parent.is_alive():
            watch = signal_handling._set_worker_signal_handlers  # type: ignore[attr-defined]

            def watch_and_survive() -> None:
                # torch's handlers let SIGTERM end a worker, so ours are set after them.
                watch()
                server.survive()

            signal_handling._set_worker_signal_handlers = watch_and_survive  # type: ignore[attr-defined]
            folder = Path(util.get_temp_dir())  # its parent's; where it hands out what it shares
            path = server.list_file(folder, parent.pid)
            torch_worker.ExceptionWrapper = _with_advice  # type: ignore[attr-defined, assignment]
            util.Finalize(None, server.remove_empty, (path,), exitpriority=-100)
            super().run()


def _with_advice(exc_info: Any = None, where: str = "in background") -> ExceptionWrapper:
    """Wraps an error of a worker, with advice if the worker may lack something of the program."""
    wrapped = ExceptionWrapper(exc_info, where)  # type: ignore[no-untyped-call]
    if issubclass(wrapped.exc_type, _FOR_WANT):
        wrapped.exc_msg += f"\n{pickling.ADVICE}"
    return wrapped


class WorkerContext(ForkServerContext):
    """The context for `DataLoader(multiprocessing_context=...)`."""

    Process = _Worker


class _Start(popen_forkserver.Popen):
    """Starts a worker by our server; the base class pickles, and knows only Python's own server."""

    def terminate(self) -> None:
        """Kills a worker that does not end by itself, since it survives SIGTERM."""
        self.kill()

    def _launch(self, process: Any) -> None:
        preparation = spawn.get_preparation_data(process.name)
        # With these the worker would run the program's main module.
        for name in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(name, None)
        file = io.BytesIO()
        set_spawning_popen(self)
        try:
            ForkingPickler(file).dump(preparation)
            ForkingPickler(file).dump(_Arrival(process))
        finally:
            set_spawning_popen(None)
        start_server(pickling.given(process).values())
        self.sentinel, write_end = _server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # As in the base class's `_launch`: the worker sees the end of this pipe when the parent
        # dies.
        parent_write_end = os.dup(write_end)
        ends = (parent_write_end, self.sentinel)
        self.finalizer = util.Finalize(self, util.close_fds, ends)  # type: ignore[attr-defined]
        with open(write_end, "wb") as pipe:  # noqa: PTH123
            pipe.write(file.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)
        pickling.has_started(process)


class _Arrival:
    """Pickles to a call that sets up a worker like this process, and returns its process object."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    def __reduce__(self) -> tuple[Callable[..., BaseProcess], tuple[Any, ...]]:
        strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        numpy = sys.modules.get("numpy")
        settings = (
            *(dict(os.environ), torch.get_default_dtype(), strategy),
            {} if numpy is None else numpy.geterr(),
        )
        return _arrive, (*settings, *pickling.dumps(self._process))


def _arrive(
    environ: dict[str, str],
    dtype: torch.dtype,
    strategy: str,
    numpy_errors: dict[str, Any],
    *pickled: Any,
) -> Any:
    """Sets up this process as a worker: environment, default dtype, sharing and NumPy's errors."""
    # The server began with another environment, see `_WITHOUT_DEVICE`.
    os.environ.clear()
    os.environ.update(environ)
    torch.set_default_dtype(dtype)
    torch.multiprocessing.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]
    if numpy_errors:
        importlib.import_module("numpy").seterr(**numpy_errors)
    # The server ends with the last process that holds this end of a pipe. A worker does not, so
    # that both end with the process that they are for: torch's workers watch their parent.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    return pickling.loads(*pickled)
