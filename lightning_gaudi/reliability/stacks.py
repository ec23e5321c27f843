"""Takes the Python stack of a rank: from within, or from outside while it runs no Python."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, NamedTuple

from lightning_gaudi._core import processes
from lightning_gaudi._core.processes.rank_monitor import killed_by

_SIGNAL = signal.SIGRTMAX - 5
"""The signal at which a rank writes its stack, by a handler in C that needs none of its threads."""

_LAST_LINES = (" in <module>\n", "  ...\n")
"""How a stack ends, whether whole or cut. Source: CPython, Python/traceback.c."""

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)(,?) in ([^\n]+)')
_VENDOR = re.compile(r"/habana_frameworks/torch/(?!utils/)")
_COLLECTIVES = re.compile(r"/torch/distributed/")
_TORCH = re.compile(r"/torch/")
_COMPILERS = re.compile(r"/torch/(_dynamo/convert_frame\.py|_inductor/)")
_WAITING_CALLS = re.compile(
    r"\.(item|tolist|cpu|numpy|wait|synchronize|all_reduce|barrier)\(|\bmark_step\("
)
"""Calls of C code by a line of Python that wait for the card or for other ranks."""

_file: IO[str] | None = None


class Process(NamedTuple):
    """Says how other processes on its host find a rank's process."""

    host: str
    """The machine, and the namespace that counts processes on it."""
    pid: int
    started: int
    """When it started, in ticks since the machine did: a later process may get the same number."""
    stack: str
    """The file that it writes its stack to."""
    board: str = ""
    """The memory in which it notes where it is."""
    module: str = ""
    """The slot of its card in the server."""


def prepare(board: str = "") -> Process:
    """Prepares this process to be asked for its stack.

    Args:
        board: The path of this process's board.

    Returns:
        What the others on this host need to know to ask.
    """
    global _file
    if _file is None:
        # Memory and no file on a disk, since memory goes away even with a process that is killed.
        _file = os.fdopen(os.memfd_create("stack"), "w")
        faulthandler.register(_SIGNAL, file=_file, all_threads=False, chain=False)
    status = processes.status(os.getpid())
    assert status is not None
    return Process(processes.host(), os.getpid(), status.started, _path(_file), board)


def close() -> None:
    """Stops answering."""
    global _file
    if _file is not None:
        faulthandler.unregister(_SIGNAL)
        _file.close()
        _file = None


def of_main_thread() -> str:
    """Returns the stack of this process's main thread; called by another thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))


class Question:
    """Asks another process on this host for its stack, without its Python; see `prepare`.

    Args:
        process: The process, which may be busy in C code.
        wakes: Whether to continue the process if it is stopped, as SIGCONT does.
    """

    def __init__(self, process: Process, *, wakes: bool = False) -> None:
        self._file: IO[str] | None = None
        self._found = ""
        with contextlib.suppress(OSError):
            self._file = Path(process.stack).open(errors="replace")  # noqa: SIM115
            # Earlier answers are in the same file.
            self._file.seek(0, os.SEEK_END)
            _signal_main_thread(process.pid)
            if wakes:
                os.kill(process.pid, signal.SIGCONT)

    def answer(self) -> str:
        """Returns the stack; "" until the process has written all of it."""
        if self._file is not None:
            # The handler writes piece by piece, the outermost frame last.
            self._found += self._file.read()
            if self._found.endswith(_LAST_LINES):
                self.close()
        return self._found if self._found.endswith(_LAST_LINES) else ""

    def close(self) -> None:
        """Gives up waiting for an answer."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _path(file: IO[str]) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _signal_main_thread(pid: int) -> None:
    """Signals the main thread, which trains, and which then writes its stack before all else.

    With a signal to the process, any thread of it might take the signal while the main one runs on.
    Source: tgkill(2), which glibc has since 2.30.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    if tgkill is None:
        os.kill(pid, _SIGNAL)
    else:
        tgkill(pid, pid, int(_SIGNAL))


def how(process: Process) -> str | None:
    """Returns how another process of this host has ended or is stopped; None if it runs."""
    status = processes.status(process.pid)
    if status is None or status.started != process.started:
        return "died, as by SIGKILL or for want of memory"
    if status.state == "T":
        return "is stopped"
    if status.state not in processes.ENDED:
        return None
    number = status.code & 0x7F
    if not number:
        return f"ended with exit status {status.code >> 8}"
    return killed_by(number)


class Call(NamedTuple):
    """Says what a stack tells of the call that a thread is in."""

    name: str
    """The innermost function of Python, its place, and the text of the line that it is in."""
    waits: bool
    """Whether the call waits for a card or for other ranks, or works for a card."""
    compiles: bool
    is_known: bool
    """Whether the call belongs to Python itself or to the user, and not to torch."""


def call(stack: str) -> Call | None:
    """Returns the call that a thread is in; None if its stack does not tell.

    Args:
        stack: Written by `faulthandler`, with the innermost frame first, or by `traceback`, with
            the innermost frame last.
    """
    frames = _FRAME.findall(stack)
    if not frames:
        return None
    # `traceback` has a comma behind the line's number, and `faulthandler` has none.
    file, line, _, function = frames[-1 if frames[0][2] else 0]
    source = linecache.getline(file, int(line)).strip()
    of_vendor = bool(_VENDOR.search(file) or _COLLECTIVES.search(file))
    waits = of_vendor or bool(_WAITING_CALLS.search(source) and not _TORCH.search(file))
    name = f"{function} ({'/'.join(Path(file).parts[-3:])}:{line})" + (f": {source}" * bool(source))
    compiles = any(_COMPILERS.search(frame[0]) for frame in frames)
    return Call(name, waits, compiles, not (waits or compiles or _TORCH.search(file)))


def innermost(stack: str, max_chars: int) -> str:
    """Returns the innermost part of a stack.

    Args:
        stack: Written by `faulthandler` or `traceback`; see `call`.
        max_chars: The most characters to keep; only whole lines are kept.
    """
    if len(stack) <= max_chars:
        return stack
    frames = _FRAME.findall(stack)
    if frames and frames[0][2]:
        return "  ...\n" + stack[-max_chars:].partition("\n")[2]
    return stack[:max_chars].rpartition("\n")[0] + "\n  ...\n"


def busy_s(process: Process) -> float:
    """Returns how many seconds the threads of a process have computed, or waited for a processor.

    The wait counts, since a compilation on a crowded machine gets only a part of a processor and
    is at work nevertheless. Source: the kernel's scheduler/sched-stats.rst; proc_pid_stat(5) for a
    kernel without these statistics.
    """
    found = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            found += sum(map(int, path.read_text().split()[:2]))
    if found:
        return found / 1e9
    status = processes.status(process.pid)
    return 0.0 if status is None else status.ticks / os.sysconf("SC_CLK_TCK")
