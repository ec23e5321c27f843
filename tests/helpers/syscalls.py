"""Record what a program does to the files of a folder, as the kernel sees it.

The program is forked and traced (ptrace), with all processes and threads that it starts. A seccomp
filter stops it at the calls that change files, and at no others, so it runs about as fast as
without. What torch writes in C++ and what Python writes look the same from here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long

# Of <linux/ptrace.h>.
_CONT, _SYSCALL, _SEIZE, _LISTEN, _SYSCALL_INFO = 7, 24, 0x4206, 0x4208, 0x420E
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, SECCOMP, EXITKILL
_EVENT_SECCOMP, _EVENT_STOP = 7, 128

_NUMBERS = {
    "x86_64": {
        **{"write": 1, "open": 2, "mmap": 9, "pwrite64": 18, "writev": 20, "sendfile": 40},
        **{"fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82},
        **{"mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88},
        **{"sync": 162, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264},
        **{"linkat": 265, "symlinkat": 266, "splice": 275, "fallocate": 285, "pwritev": 296},
        **{"syncfs": 306, "renameat2": 316, "copy_file_range": 326, "pwritev2": 328},
        "openat2": 437,
    },
    "aarch64": {
        **{"mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38},
        **{"truncate": 45, "ftruncate": 46, "fallocate": 47, "openat": 56, "write": 64},
        **{"writev": 66, "pwrite64": 68, "pwritev": 70, "sendfile": 71, "splice": 76, "sync": 81},
        **{"fsync": 82, "fdatasync": 83, "mmap": 222, "syncfs": 267, "renameat2": 276},
        **{"copy_file_range": 285, "pwritev2": 287, "openat2": 437},
    },
}
_IO_URING_SETUP = 425  # everywhere
_NAMES = {number: name for name, number in _NUMBERS.get(platform.machine(), {}).items()}


@dataclass(frozen=True)
class Event:
    """Something that was done to a file or a folder."""

    kind: str
    """create, mkdir, symlink, link, rename, exchange, unlink, write, truncate, sync, mark."""
    path: str = ""
    """The name that it was done to; the file of a descriptor is told by `inode`."""
    other: str = ""
    """The new name of a rename or link; what a symbolic link points to; the text of a mark."""
    inode: int = 0
    """The kernel's number of the file; 0 for what `sync` brings all of the disk to."""
    offset: int = 0
    """Where was written, or the length of what was cut or stretched."""
    data: bytes = field(default=b"", repr=False)
    covers: int = 0
    """Of a sync: how many events had happened when it began, which are those that it covers."""


def why_not() -> str | None:
    """Why programs cannot be recorded here, and what would enable it; None if they can."""
    if sys.platform != "linux" or not _NAMES:
        return f"system calls are recorded on Linux on {' and '.join(_NUMBERS)}"
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        if _ptrace(_SEIZE, pid, 0, _OPTIONS) < 0:
            return "ptrace is forbidden here: allow the capability SYS_PTRACE (kernel.yama)"
        return None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def record(program: Callable[[], None], folder: Path) -> list[Event]:
    """Run a program in a fork of this process, and return what it did to the files of a folder.

    This process must have no other children: it waits for all.

    What it writes to the file `marks` beside the folder becomes events of the kind "mark".

    Raises:
        AssertionError: It failed, or it changed files in a way that is not followed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_traced(program, reader, writer)
    os.close(reader)
    if _ptrace(_SEIZE, pid, 0, _OPTIONS) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.close(writer)
    return _Tracer(pid, folder.resolve()).run()


def mark(folder: Path, text: str) -> None:
    """Write a mark into the record, from the program that is recorded."""
    with (folder.resolve().parent / "marks").open("ab", buffering=0) as file:
        file.write(text.encode())


def _be_traced(program: Callable[[], None], reader: int, writer: int) -> None:
    status = 1
    try:
        os.close(writer)
        os.read(reader, 1)  # until this process is traced
        os.close(reader)
        _install_filter()
        program()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _install_filter() -> None:
    """Have the calls in `_NAMES` stop this process for its tracer; all others pass.

    There is no io_uring for it, by which files can be changed without a call: torch's store uses it
    for sockets, and does without.
    """
    load, jump, leave = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    code = [(load, 0, 0, 0)]
    for left, number in zip(range(len(_NAMES) + 2, 2, -1), _NAMES, strict=True):
        code.append((jump, left, 0, number))
    no_call = 0x50000 | errno.ENOSYS
    code += [(jump, 0, 1, _IO_URING_SETUP), (leave, 0, 0, no_call)]
    code += [(leave, 0, 0, 0x7FFF0000), (leave, 0, 0, 0x7FF00000)]  # allow; stop
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters))
    if _LIBC.prctl(38, 1, 0, 0, 0) or _LIBC.prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _ptrace(request: int, pid: int, address: int, data: Any) -> int:
    return int(_LIBC.ptrace(request, pid, address, data))


class _Tracer:
    """Follows a process and all that it starts, until they have ended."""

    def __init__(self, pid: int, root: Path) -> None:
        self._pid, self._root = pid, str(root)
        self._marks = str(root.parent / "marks")
        self._begun: dict[int, tuple[str, tuple[int, ...], list[Event]]] = {}
        self._events: list[Event] = []
        self._status: int | None = None

    def run(self) -> list[Event]:
        while True:
            try:
                tid, status = os.waitpid(-1, 0x40000000)  # __WALL
            except ChildProcessError:
                break
            if os.WIFSTOPPED(status):
                self._go_on(tid, status)
            else:
                self._begun.pop(tid, None)
                if tid == self._pid:
                    self._status = status
        assert self._status == 0, f"the program that was recorded ended with {self._status}"
        return self._events

    def _go_on(self, tid: int, status: int) -> None:
        stop, event = os.WSTOPSIG(status), status >> 16
        request, passed = _CONT, 0
        if event == _EVENT_SECCOMP:
            self._begin(tid)
            request = _SYSCALL
        elif stop == signal.SIGTRAP | 0x80:
            self._end(tid)
        elif event == _EVENT_STOP and stop != signal.SIGTRAP:
            request = _LISTEN  # stopped by a signal until it is told to go on
        elif event == 0:
            passed = stop
        _ptrace(request, tid, 0, passed)

    def _begin(self, tid: int) -> None:
        """Look at a call before it is done: what it names may be gone afterwards."""
        _, number, *args = struct.unpack_from("24sQ6Q", _call_info(tid))
        name = _NAMES[number]
        events = list(self._looked_at(tid, name, tuple(args)))
        self._begun[tid] = name, tuple(args), events

    def _end(self, tid: int) -> None:
        name, args, events = self._begun.pop(tid)
        _, result, is_error = struct.unpack_from("24sqB", _call_info(tid))
        if is_error:
            return
        if name in ("openat", "open", "creat"):
            events = list(self._opened(tid, events, result))
        elif name in ("sendfile", "copy_file_range"):
            events = list(self._copied(tid, int(args[0 if name == "sendfile" else 2]), result))
        self._events += [self._completed(tid, args, each, result) for each in events]

    def _completed(self, tid: int, args: tuple[int, ...], event: Event, result: int) -> Event:
        """What is known once a call is done: how much it wrote where, and the new file."""
        if event.kind == "mark":
            return replace(event, other=event.data[:result].decode())
        if event.kind == "mkdir":
            return replace(event, inode=Path(event.path).stat().st_ino)
        if event.kind != "write":
            return event
        position = event.offset
        if position < 0:
            position = _position(tid, args[0]) - result
        return replace(event, data=event.data[:result], offset=position)

    def _looked_at(self, tid: int, name: str, args: tuple[int, ...]) -> Iterator[Event]:
        if name in ("write", "pwrite64", "writev", "pwritev", "pwritev2"):
            yield from self._written(tid, name, args)
        elif name in ("sync", "syncfs"):
            yield Event("sync", covers=len(self._events))
        elif name in ("fsync", "fdatasync", "ftruncate", "fallocate"):
            if inode := self._inode(tid, args[0]):
                yield from self._sized(tid, name, args, inode)
        elif name in ("open", "openat", "creat"):
            yield from self._about_to_open(tid, name, args)
        elif name in ("mmap", "splice", "truncate", "openat2", "copy_file_range"):
            self._refuse(tid, name, args)
        elif name != "sendfile":
            yield from self._named(tid, name, args)

    def _sized(self, tid: int, name: str, args: tuple[int, ...], inode: int) -> Iterator[Event]:
        if name.endswith("sync"):
            yield Event("sync", inode=inode, covers=len(self._events))
        elif name == "ftruncate":
            yield Event("truncate", inode=inode, offset=args[1])
        elif args[1] == 0 and args[2] + args[3] > _size(tid, args[0]):
            yield Event("truncate", inode=inode, offset=args[2] + args[3])

    def _written(self, tid: int, name: str, args: tuple[int, ...]) -> Iterator[Event]:
        path = _link(tid, args[0])
        if path == self._marks or self._inode(tid, args[0]):
            pieces = [(args[1], args[2])]
            if "v" in name:
                raw = _memory(tid, args[1], 16 * args[2])
                pieces = [struct.unpack_from("QQ", raw, 16 * i) for i in range(args[2])]
            data = b"".join(_memory(tid, *piece) for piece in pieces)
            offset = args[3] if name.startswith("p") else -1
            kind = "mark" if path == self._marks else "write"
            yield Event(kind, inode=self._inode(tid, args[0]), data=data, offset=offset)

    def _about_to_open(self, tid: int, name: str, args: tuple[int, ...]) -> Iterator[Event]:
        at, address, flags = {
            "openat": (args[0], args[1], args[2]),
            "open": (-100, args[0], args[1]),
            "creat": (-100, args[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
        }[name]
        path = _path(tid, at, address)
        if self._is_inside(path) and flags & (os.O_CREAT | os.O_TRUNC):
            is_new = flags & os.O_CREAT and not os.path.lexists(path)
            assert not Path(path).is_symlink(), f"{path} is opened through a link"
            yield Event("create" if is_new else "open", path=path, offset=flags)

    def _opened(self, tid: int, events: list[Event], descriptor: int) -> Iterator[Event]:
        for event in events:
            inode = self._inode(tid, descriptor)
            if event.kind == "create":
                yield replace(event, inode=inode, offset=0)
            elif event.offset & os.O_TRUNC:
                yield Event("truncate", inode=inode, offset=0)

    def _copied(self, tid: int, descriptor: int, length: int) -> Iterator[Event]:
        if inode := self._inode(tid, descriptor):
            with Path(f"/proc/{tid}/fd/{descriptor}").open("rb") as file:
                file.seek(_position(tid, descriptor) - length)
                data, offset = file.read(length), file.tell() - length
            yield Event("write", inode=inode, data=data, offset=offset)

    def _named(self, tid: int, name: str, args: tuple[int, ...]) -> Iterator[Event]:
        """What changes names."""
        if name in ("rename", "link"):
            paths = _path(tid, -100, args[0]), _path(tid, -100, args[1])
        elif name in ("renameat", "renameat2", "linkat"):
            paths = _path(tid, args[0], args[1]), _path(tid, args[2], args[3])
        elif name.startswith("symlink"):
            at, address = (args[1], args[2]) if name == "symlinkat" else (-100, args[1])
            paths = _path(tid, at, address), os.fsdecode(_string(tid, args[0]))
        else:
            at, address = (args[0], args[1]) if name.endswith("at") else (-100, args[0])
            paths = _path(tid, at, address), ""
        kind = name.rstrip("2").removesuffix("at")
        if name == "renameat2" and args[4] & 2:
            kind = "exchange"
        if self._is_inside(paths[0]) or (kind in ("rename", "link") and self._is_inside(paths[1])):
            assert kind not in ("rename", "link", "exchange") or all(map(self._is_inside, paths))
            yield Event("unlink" if kind == "rmdir" else kind, *paths)

    def _refuse(self, tid: int, name: str, args: tuple[int, ...]) -> None:
        """Fail where files are changed in a way that is not followed."""
        changes = {
            "mmap": lambda: args[2] & 2 and args[3] & 1 and self._inode(tid, args[4]),
            "splice": lambda: self._inode(tid, args[2]),
            "truncate": lambda: self._is_inside(_path(tid, -100, args[0])),
            "openat2": lambda: self._is_inside(_path(tid, args[0], args[1])),
            "copy_file_range": lambda: args[3] and self._inode(tid, args[2]),
        }
        assert not changes[name](), f"{name} is not followed"

    def _is_inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def _inode(self, tid: int, descriptor: int) -> int:
        """The number of an open file of the folder; 0 for any other."""
        descriptor &= 0xFFFFFFFF
        if descriptor < 2**31 and self._is_inside(_link(tid, descriptor)):
            return Path(f"/proc/{tid}/fd/{descriptor}").stat().st_ino
        return 0


def _call_info(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(128)
    if _ptrace(_SYSCALL_INFO, tid, len(buffer), ctypes.addressof(buffer)) < 0:
        raise OSError(ctypes.get_errno(), "PTRACE_GET_SYSCALL_INFO")
    return buffer.raw


def _memory(tid: int, address: int, length: int) -> bytes:
    with Path(f"/proc/{tid}/mem").open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, address)


def _string(tid: int, address: int) -> bytes:
    found = b""
    while b"\0" not in found:
        at = address + len(found)
        found += _memory(tid, at, 4096 - at % 4096)
    return found[: found.index(b"\0")]


def _path(tid: int, at: int, address: int) -> str:
    """What a call names, without symbolic links in its folders."""
    at = ctypes.c_int(at & 0xFFFFFFFF).value
    folder = Path(f"/proc/{tid}/cwd" if at == -100 else f"/proc/{tid}/fd/{at}").readlink()
    path = Path(os.path.normpath(folder / os.fsdecode(_string(tid, address))))
    return str(path.parent.resolve() / path.name)


def _link(tid: int, descriptor: int) -> str:
    try:
        return str(Path(f"/proc/{tid}/fd/{descriptor & 0xFFFFFFFF}").readlink())
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return ""


def _position(tid: int, descriptor: int) -> int:
    return int(Path(f"/proc/{tid}/fdinfo/{descriptor & 0xFFFFFFFF}").read_text().split()[1])


def _size(tid: int, descriptor: int) -> int:
    return Path(f"/proc/{tid}/fd/{descriptor & 0xFFFFFFFF}").stat().st_size
