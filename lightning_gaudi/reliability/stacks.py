"""The Python stack of a rank, from within, or from beside it while it lets no Python run."""

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
"""At which a rank writes its stack, without any of its threads."""

_LAST_LINES = (" in <module>\n", "  ...\n")
"""With which a stack ends, whole or cut. Source: CPython, Python/traceback.c."""

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
    """A rank's process, as others on its host may find it."""

    host: str
    """The machine, and what counts processes on it."""
    pid: int
    started: int
    """When, in ticks since the machine started: another process may get its number."""
    stack: str
    """The file that it writes its stack to."""
    board: str = ""
    """The memory in which it notes where it is."""
    module: str = ""
    """The slot of its card in the server."""


def prepare(board: str = "") -> Process:
    """Gets ready to be asked for a stack.

    Args:
        board: Where this process's board is.

    Returns:
        What others on this host need to know.
    """
    global _file
    if _file is None:
        # Memory, and no file on a disk: it ends with the process, killed or not.
        _file = os.fdopen(os.memfd_create("stack"), "w")
        faulthandler.register(_SIGNAL, file=_file, all_threads=False, chain=False)
    status = processes.status(os.getpid())
    assert status is not None
    return Process(processes.host(), os.getpid(), status.started, _path(_file), board)


def close() -> None:
    """Answers no more."""
    global _file
    if _file is not None:
        faulthandler.unregister(_SIGNAL)
        _file.close()
        _file = None


def of_main_thread() -> str:
    """Returns the stack of this process's main thread, which another thread asks for."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))


class Question:
    """The stack of another process on this host, asked for without its Python; see `prepare`.

    Args:
        process: It may be busy in C code.
        wakes: Whether it is asked though it is stopped; it then goes on, as by SIGCONT.
    """

    def __init__(self, process: Process, *, wakes: bool = False) -> None:
        self._file: IO[str] | None = None
        self._found = ""
        with contextlib.suppress(OSError):
            self._file = Path(process.stack).open(errors="replace")  # noqa: SIM115
            self._file.seek(0, os.SEEK_END)
            _signal_main_thread(process.pid)
            if wakes:
                os.kill(process.pid, signal.SIGCONT)

    def answer(self) -> str:
        """Returns what it has written; "" until that is whole."""
        if self._file is not None:
            # It is written piece by piece, the outermost frame last.
            self._found += self._file.read()
            if self._found.endswith(_LAST_LINES):
                self.close()
        return self._found if self._found.endswith(_LAST_LINES) else ""

    def close(self) -> None:
        """Waits for no answer any more."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _path(file: IO[str]) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _signal_main_thread(pid: int) -> None:
    """Asks the thread that trains, which writes its stack before it does anything else.

    Of a process that was stopped any thread might take the signal otherwise, while that one runs
    on. Source: tgkill(2); glibc has it since 2.30.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    if tgkill is None:
        os.kill(pid, _SIGNAL)
    else:
        tgkill(pid, pid, int(_SIGNAL))


def kill(process: Process) -> None:
    """Ends another process on this host, whatever it does."""
    if how(process) is None or how(process) == "is stopped":
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def how(process: Process) -> str | None:
    """Tells how another process of this host has ended, or that it stands; None as it runs."""
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
    """What a stack tells of the call that a thread is in."""

    name: str
    """The innermost function of Python, where it stands, and what that line says."""
    waits: bool
    """Whether it is one that waits for a card or for other ranks, or works for a card."""
    compiles: bool
    is_known: bool
    """Whether it is a call of Python's own or of the user's, and none of torch."""


def call(stack: str) -> Call | None:
    """Returns in which call a thread is, or None if its stack does not tell.

    Args:
        stack: As `faulthandler` writes it, the innermost frame first, or `traceback`, last.
    """
    frames = _FRAME.findall(stack)
    if not frames:
        return None
    file, line, _, function = frames[-1 if frames[0][2] else 0]
    source = linecache.getline(file, int(line)).strip()
    of_vendor = bool(_VENDOR.search(file) or _COLLECTIVES.search(file))
    waits = of_vendor or bool(_WAITING_CALLS.search(source) and not _TORCH.search(file))
    name = f"{function} ({'/'.join(Path(file).parts[-3:])}:{line})" + (f": {source}" * bool(source))
    compiles = any(_COMPILERS.search(frame[0]) for frame in frames)
    return Call(name, waits, compiles, not (waits or compiles or _TORCH.search(file)))


def innermost(stack: str, max_chars: int) -> str:
    """Returns the part of a stack that is nearest to where the thread is.

    Args:
        stack: As `faulthandler` writes it, the innermost frame first, or `traceback`, last.
        max_chars: How many characters are kept, in whole lines.
    """
    if len(stack) <= max_chars:
        return stack
    frames = _FRAME.findall(stack)
    if frames and frames[0][2]:
        return "  ...\n" + stack[-max_chars:].partition("\n")[2]
    return stack[:max_chars].rpartition("\n")[0] + "\n  ...\n"


def busy_s(process: Process) -> float:
    """Returns for how many seconds the threads of a process have computed, or wanted to.

    On a machine with too many programs a compilation has but a part of a processor, and is no
    less at work. Source: the kernel's scheduler/sched-stats.rst; proc_pid_stat(5) without it.
    """
    found = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            found += sum(map(int, path.read_text().split()[:2]))
    if found:
        return found / 1e9
    status = processes.status(process.pid)
    return 0.0 if status is None else status.ticks / os.sysconf("SC_CLK_TCK")
