"""What a disk may hold after the power fails: recorded file operations, and states rebuilt of them.

`record` runs a program under strace, which sees the writes of code in C too. A `Disk` knows which
operations an fsync has brought to it, and draws a state that it may be left in at any moment.

The model is what POSIX promises, and no more. What was written to a file since its last fsync is
there in part: any of the writes, cut, or zeros. Of the names in a folder that were made, changed or
removed since the folder's last fsync any may be as before, in any order; a rename is whole or not
at all. A file's fsync brings its content to disk, and not its name.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = (
    "openat,open,creat,write,pwrite64,writev,lseek,ftruncate,truncate,fallocate,copy_file_range,"
    "sendfile,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,fsync,fdatasync,access,faccessat,faccessat2"
)
_UNKNOWN = {"pwritev", "copy_file_range", "sendfile", "link", "linkat", "writev", "fallocate"}
"""Calls that change a file in a way that is not modelled: a program that makes one fails."""

MARKS = "/power-loss-mark/"
"""Where a program looks, which strace sees, for a file whose name says what it has come to."""


@dataclass(frozen=True)
class Operation:
    """A call that has succeeded, as strace tells it."""

    name: str
    path: str
    other: str = ""
    """What a file is renamed to."""
    offset: int = 0
    """Where it is written, or how long it becomes."""
    data: bytes = b""


def mark(what: str) -> None:
    """Tells who records that a program has come to something."""
    os.access(MARKS + what, os.F_OK)


def record(command: Sequence[str], folder: Path, log: Path, **options: object) -> list[Operation]:
    """Runs a program and returns what it has done in a folder, in order.

    Args:
        command: Must end with status 0.
        folder: Operations outside of it are left out.
        log: A file for strace.
        options: For `subprocess.run`.
    """
    traced = ["strace", "-f", "-y", "-xx", "-s", str(2**24), "--seccomp-bpf", "-e", "signal=none"]
    traced += ["-e", f"trace={_CALLS}", "-o", str(log), *command]
    done = subprocess.run(traced, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return list(_Parser(str(folder)).parse(log))


_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?|<((?:\\x[0-9a-f]{2})*)>')


class _Parser:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._unfinished: dict[str, str] = {}
        self._offsets: dict[tuple[str, str], int] = {}

    def parse(self, log: Path) -> Iterator[Operation]:
        with log.open(errors="replace") as lines:
            for line in lines:
                pid, _, call = line.rstrip("\n").partition(" ")
                call = call.lstrip()
                if call.endswith("<unfinished ...>"):
                    self._unfinished[pid] = call.removesuffix("<unfinished ...>")
                    continue
                if call.startswith("<... "):
                    call = self._unfinished.pop(pid, "") + call.partition(" resumed>")[2]
                found = re.fullmatch(r"(\w+)\((.*)\)\s+= (-?\d+)(.*)", call)
                if found:
                    yield from self._operations(found[1], found[2], int(found[3]), found[4])

    def _operations(self, name: str, arguments: str, value: int, rest: str) -> Iterator[Operation]:
        texts = [
            bytes.fromhex((quoted or path).replace("\\x", ""))
            for quoted, path in _STRING.findall(arguments)
        ]
        first = texts[0].decode(errors="replace") if texts else ""
        if "access" in name and any(MARKS.encode() in each for each in texts):
            yield Operation("mark", next(t for t in texts if MARKS.encode() in t).decode())
            return
        descriptor, _, is_open = arguments.partition("<")
        of_file = texts[:1] if is_open and descriptor.isdigit() else texts
        if value < 0 or not any(each.startswith(self._folder.encode()) for each in of_file):
            return
        if name == "lseek":
            self._offsets[first, descriptor] = value
        elif name in ("open", "openat", "creat"):
            yield from self._open(arguments, texts, value)
        elif name == "write":
            offset = self._offsets.get((first, descriptor), 0)
            self._offsets[first, descriptor] = offset + value
            yield Operation("write", first, offset=offset, data=texts[1][:value])
        elif name == "pwrite64":
            offset = int(arguments.rpartition(",")[2])
            yield Operation("write", first, offset=offset, data=texts[1][:value])
        elif name == "ftruncate":
            yield Operation("truncate", first, offset=int(arguments.rpartition(",")[2]))
        elif name in ("fsync", "fdatasync"):
            yield Operation("fsync", first)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = _paths(arguments, texts)
            kind = "exchange" if "RENAME_EXCHANGE" in arguments else "rename"
            yield Operation(kind, old, new)
        elif name in ("unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"):
            (path,) = _paths(arguments, texts)
            yield Operation("mkdir" if name.startswith("mkdir") else "remove", path)
        else:
            assert name not in _UNKNOWN, f"{name}({arguments[:200]}) is not modelled"

    def _open(self, arguments: str, texts: list[bytes], descriptor: int) -> Iterator[Operation]:
        (path,) = _paths(arguments, texts)
        flags = _STRING.sub("", arguments)
        assert "O_APPEND" not in flags or "O_CREAT" in flags, arguments[:200]
        self._offsets[path, str(descriptor)] = 0
        if "O_CREAT" in flags:
            yield Operation("create", path)
        if "O_TRUNC" in flags:
            yield Operation("truncate", path)


def _paths(arguments: str, texts: list[bytes]) -> list[str]:
    """Returns the paths of a call, each joined to the folder that it is relative to."""
    names = [each.decode(errors="replace") for each in texts]
    kinds = [
        "quoted" if quoted or not path else "path" for quoted, path in _STRING.findall(arguments)
    ]
    found, base = [], ""
    for name, kind in zip(names, kinds, strict=True):
        if kind == "path":
            base = name
        else:
            found.append(name if name.startswith("/") else os.path.join(base, name))  # noqa: PTH118
    return found


@dataclass
class _Node:
    """A file or a folder, whatever its name."""

    is_folder: bool
    number: int
    writes: list[tuple[int, bytes | None, int]] = field(default_factory=list)
    """When, what (None to cut it), and where."""
    synced_at: int = -1


@dataclass(frozen=True)
class _Naming:
    """A change of names, whole or not at all."""

    at: int
    changes: tuple[tuple[int, str, int | None], ...]
    """In which folder, which name, and what it is now, by number."""


class Disk:
    """What some operations have left to chance at each moment.

    Args:
        operations: In order.
        folder: Is on disk, and empty, at the start.
    """

    def __init__(self, operations: Sequence[Operation], folder: Path) -> None:
        self.operations = operations
        self._root = str(folder)
        self._nodes = [_Node(is_folder=True, number=0)]
        self._namings: list[_Naming] = []
        self._syncs: list[tuple[int, int]] = []
        self._now: dict[tuple[int, str], int] = {}
        for at, operation in enumerate(operations):
            self._do(at, operation)

    def states(self, count: int, seed: int) -> Iterator[tuple[int, dict[str, bytes | None]]]:
        """Yields states that the disk may be in, each once, with the number of operations before.

        Those in which all, or nothing that was not synced, has come to disk are drawn for each
        moment, the others at random.

        Args:
            count: How many are drawn.
            seed: Of the draw.
        """
        draw = random.Random(seed)
        moments = [(end, kept) for end in range(len(self.operations) + 1) for kept in (0.0, 1.0)]
        while len(moments) < count:
            end = draw.randrange(len(self.operations) + 1)
            moments.append((end, draw.choice((0.1, 0.5, 0.9))))
        seen = set[tuple[int, int]]()
        for end, kept in moments:
            state = self._state(end, kept, draw)
            marks = sum(each.name == "mark" for each in self.operations[:end])
            key = hash(frozenset(state.items())), marks
            if key not in seen:
                seen.add(key)
                yield end, state

    def marks(self, end: int) -> list[str]:
        """Returns what the program had come to after so many operations."""
        found = [each.path for each in self.operations[:end] if each.name == "mark"]
        return [each.removeprefix(MARKS) for each in found]

    def _do(self, at: int, operation: Operation) -> None:
        if operation.name == "mark":
            return
        if operation.name in ("create", "mkdir"):
            if self._find(operation.path) is None:
                node = _Node(operation.name == "mkdir", len(self._nodes))
                self._nodes.append(node)
                self._rename(at, [(operation.path, node.number)])
            return
        found = self._find(operation.path)
        if found is None:
            return  # opened before it was removed: nobody finds it any more
        node = self._nodes[found]
        if operation.name == "write":
            node.writes.append((at, operation.data, operation.offset))
        elif operation.name == "truncate":
            node.writes.append((at, None, operation.offset))
        elif operation.name == "fsync":
            self._syncs.append((at, found))
        elif operation.name == "remove":
            self._rename(at, [(operation.path, None)])
        else:
            other = self._find(operation.other) if operation.name == "exchange" else None
            self._rename(at, [(operation.path, other), (operation.other, found)])

    def _find(self, path: str) -> int | None:
        if path == self._root:
            return 0
        parent = self._find(os.path.dirname(path)) if path.startswith(self._root) else None  # noqa: PTH120
        return None if parent is None else self._now.get((parent, os.path.basename(path)))  # noqa: PTH119

    def _rename(self, at: int, changes: list[tuple[str, int | None]]) -> None:
        found = []
        for path, number in changes:
            parent = self._find(os.path.dirname(path))  # noqa: PTH120
            assert parent is not None, path
            name = os.path.basename(path)  # noqa: PTH119
            found.append((parent, name, number))
            if number is None:
                self._now.pop((parent, name), None)
            else:
                self._now[parent, name] = number
        self._namings.append(_Naming(at, tuple(found)))

    def _state(self, end: int, kept: float, draw: random.Random) -> dict[str, bytes | None]:
        synced: dict[int, int] = {}
        for at, number in self._syncs:
            if at < end:
                synced[number] = at
        names: dict[int, dict[str, int]] = {}
        for naming in self._namings:
            is_synced = all(synced.get(parent, -1) > naming.at for parent, _, _ in naming.changes)
            if naming.at < end and (is_synced or draw.random() < kept):
                for parent, name, number in naming.changes:
                    names.setdefault(parent, {}).pop(name, None)
                    if number is not None:
                        names[parent][name] = number
        state: dict[str, bytes | None] = {}
        left = [(0, "")]
        while left:
            parent, prefix = left.pop()
            for name, number in names.get(parent, {}).items():
                node, path = self._nodes[number], prefix + name
                if node.is_folder:
                    state[path] = None
                    left.append((number, f"{path}/"))
                else:
                    state[path] = self._content(node, end, synced.get(number, -1), kept, draw)
        return state

    def _content(
        self, node: _Node, end: int, synced: int, kept: float, draw: random.Random
    ) -> bytes:
        content = bytearray()
        for at, data, offset in node.writes:
            if at >= end:
                break
            written = data
            if at > synced and draw.random() >= kept:
                what = draw.choice(("missing", "zeros", "cut"))
                if data is None or what == "missing":
                    continue
                written = bytes(len(data)) if what == "zeros" else data[: len(data) // 2]
            if written is None:
                del content[offset:]
                content.extend(bytes(offset - len(content)))
            else:
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(written)] = written
        return bytes(content)


def rebuild(state: dict[str, bytes | None], folder: Path) -> None:
    """Makes a folder that holds a state."""
    folder.mkdir()
    for name in sorted(state):
        content = state[name]
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
