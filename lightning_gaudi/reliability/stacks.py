"""The Python stack of a rank, from within, or from beside it while it lets no Python run."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, NamedTuple

from lightning_gaudi._core.rank_monitor import killed_by

_SIGNAL = signal.SIGRTMAX - 5
"""At which a rank writes its stack, without any of its threads."""

_WRITING_S = 2.0

_LAST_LINES = (" in <module>\n", "  ...\n")
"""With which a stack ends, whole or cut. Source: CPython, Python/traceback.c."""

_file: IO[str] | None = None


class Process(NamedTuple):
    """A rank's process, as others on its host may find it."""

    host: str
    """The machine, and what counts processes on it."""
    pid: int
    started: int
    """When, in ticks since the machine started: another process may get its number."""
    stack: str
    """The file that it writes its stack to."""


def prepare() -> Process:
    """Be ready to be asked for a stack; what others need to know."""
    global _file
    if _file is None:
        # Memory, and no file on a disk: it ends with the process, killed or not.
        _file = os.fdopen(os.memfd_create("stack"), "w")
        faulthandler.register(_SIGNAL, file=_file, all_threads=False, chain=False)
    status = _status(os.getpid())
    assert status is not None
    namespace = Path("/proc/self/ns/pid")
    host = f"{os.uname().nodename} {namespace.readlink()}"
    return Process(host, os.getpid(), status.started, _path(_file))


def close() -> None:
    """Be asked no more."""
    global _file
    if _file is not None:
        faulthandler.unregister(_SIGNAL)
        _file.close()
        _file = None


def of_main_thread() -> str:
    """The stack of this process's main thread, which another thread asks for.

    If another process has asked before, as of one that was stopped, it is the stack of that moment.
    """
    if _file is not None and (asked := Path(_path(_file)).read_text()):
        return asked
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def of_other(process: Process) -> str:
    """The stack of another process on this host, be it stopped or busy; "" if it gives none."""
    end = time.monotonic() + _WRITING_S
    with contextlib.suppress(OSError), Path(process.stack).open() as file:
        file.seek(0, os.SEEK_END)
        _signal_main_thread(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        found = ""
        # It is written piece by piece, the outermost frame last.
        while time.monotonic() < end and not found.endswith(_LAST_LINES):
            time.sleep(0.05)
            found += file.read()
        return found
    return ""


def _path(file: IO[str]) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _signal_main_thread(pid: int) -> None:
    """Ask the thread that trains, which writes its stack before it does anything else.

    Of a process that was stopped any thread might take the signal otherwise, while that one runs
    on. Source: tgkill(2); glibc has it since 2.30.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    if tgkill is None:
        os.kill(pid, _SIGNAL)
    else:
        tgkill(pid, pid, int(_SIGNAL))


def kill(process: Process) -> None:
    """End another process on this host, whatever it does."""
    if how(process) is None or how(process) == "is stopped":
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def how(process: Process) -> str | None:
    """How another process on this host has ended, or that it is stopped; None while it runs."""
    status = _status(process.pid)
    if status is None or status.started != process.started:
        return "died, as by SIGKILL or for want of memory"
    if status.state == "T":
        return "is stopped"
    if status.state not in ("Z", "X"):
        return None
    number = status.code & 0x7F
    if not number:
        return f"ended with exit status {status.code >> 8}"
    return killed_by(number)


class _Status(NamedTuple):
    state: str
    started: int
    code: int


def _status(pid: int) -> _Status | None:
    """What the kernel says of a process. Source: proc_pid_stat(5), fields 3, 22 and 52."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Status(fields[0], int(fields[19]), int(fields[49]))
