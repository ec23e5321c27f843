"""Every state in which a loss of power may leave the disk, from what a program did to its files.

The model is what POSIX promises, and no more than that:

- What was written to a file is on the disk once the file was synced after it. Until then any part
  of it may be: nothing, all, a part that is cut anywhere, pages here and there; and where it is
  not, there are zeros or what lay on the disk before.
- A name that was made, moved, exchanged or removed is on the disk once its folder was synced after
  it. Until then each of these changes may be there or not, in whatever order they were made; but
  each is there as a whole.
- Syncing a file says nothing of its name, and syncing a folder nothing of what is in its files.

So whatever ext4, XFS, Btrfs or NFS do beyond it, they leave one of these states.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .syscalls import Event

_PAGE = 4096
_AGE_S = 3600.0
"""How long a machine was without power."""

_VARIANTS = ("nothing", "all", "cut", "zeros", "garbage", "pages")
"""What is on the disk of what was written to a file that was not synced since."""


class _Change(NamedTuple):
    """A change of names that is made at once: in which folder which name is which node, or none."""

    at: int
    names: tuple[tuple[int, str, int | None], ...]


class _Write(NamedTuple):
    at: int
    offset: int
    data: bytes | None
    """None where the file was cut or stretched to `offset`."""


@dataclass
class _Node:
    """A file, a folder or a symbolic link."""

    content: bytes | None = None
    """What a file had in the beginning; None for a folder or a link."""
    link: str = ""
    inode: int = 0
    stat: os.stat_result | None = None
    writes: list[_Write] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    """When it was synced, and what that covers."""
    is_folder: bool = False

    def covered(self, at: int) -> int:
        """Up to which event it is on the disk, at some moment."""
        return max((covers for when, covers in self.syncs if when < at), default=0)


class State(NamedTuple):
    """What the disk may have after a loss of power."""

    at: int
    """After which of the events."""
    tree: tuple[tuple[str, str | bytes | None], ...]
    """Path and content: bytes of a file, the target of a link, None for a folder."""
    nodes: tuple[int, ...]


class Disk:
    """A folder, and what was done to it.

    Args:
        folder: It, before the program begins; see `follow`.
    """

    def __init__(self, folder: Path) -> None:
        self.root = str(folder.resolve())
        self._nodes: list[_Node] = []
        self._names: dict[int, dict[str, int]] = {}
        """Of each folder, as it was in the beginning."""
        self._changes: list[_Change] = []
        self.num_events = 0
        self.marks: list[tuple[int, str]] = []
        self._begin(folder.resolve())

    def _begin(self, path: Path) -> int:
        found = path.lstat()
        number = self._add(_Node(inode=found.st_ino, stat=found))
        node = self._nodes[number]
        if path.is_symlink():
            node.link = str(path.readlink())
        elif path.is_dir():
            node.is_folder = True
            self._names[number] = {each.name: self._begin(each) for each in sorted(path.iterdir())}
        else:
            node.content = path.read_bytes()
        return number

    def _add(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def follow(self, events: Sequence[Event]) -> Disk:
        """Take note of all that a program did; returns this."""
        live = {number: dict(names) for number, names in self._names.items()}
        inodes = {node.inode: number for number, node in enumerate(self._nodes)}
        for at, event in enumerate(events):
            if event.kind == "mark":
                self.marks.append((at, event.other))
            elif event.kind in ("write", "truncate"):
                data = event.data if event.kind == "write" else None
                self._nodes[inodes[event.inode]].writes.append(_Write(at, event.offset, data))
            elif event.kind == "sync":
                synced = [inodes[event.inode]] if event.inode else range(len(self._nodes))
                for number in synced:
                    self._nodes[number].syncs.append((at, event.covers))
            else:
                self._change(at, event, live, inodes)
        self.num_events = len(events)
        return self

    def _change(
        self, at: int, event: Event, live: dict[int, dict[str, int]], inodes: dict[int, int]
    ) -> None:
        folder, name = self._find(event.path, live)
        changed: list[tuple[int, str, int | None]] = []
        if event.kind in ("create", "mkdir", "symlink"):
            content = b"" if event.kind == "create" else None
            node = _Node(content=content, inode=event.inode, is_folder=event.kind == "mkdir")
            node.link = event.other if event.kind == "symlink" else ""
            number = self._add(node)
            inodes[event.inode] = number
            if node.is_folder:
                self._names[number] = {}
                live[number] = {}
            changed = [(folder, name, number)]
        elif event.kind == "unlink":
            changed = [(folder, name, None)]
        else:
            there, new = self._find(event.other, live)
            before = live[there].get(new)
            kept = {"link": live[folder][name], "rename": None, "exchange": before}[event.kind]
            changed = [(folder, name, kept), (there, new, live[folder][name])]
        self._changes.append(_Change(at, tuple(changed)))
        _apply(live, [self._changes[-1]])

    def _find(self, path: str, live: dict[int, dict[str, int]]) -> tuple[int, str]:
        *folders, name = path.removeprefix(self.root).strip("/").split("/")
        number = 0
        for each in folders:
            number = live[number][each]
        return number, name

    def whole(self, at: int) -> State:
        """What a program saw after some of the events: all that was done until then."""
        names = {number: dict(each) for number, each in self._names.items()}
        _apply(names, [change for change in self._changes if change.at < at])
        return self._state(at, names, {}, random.Random(0))

    def states(self, limit: int, seed: int) -> tuple[list[State], bool]:
        """The states after a loss of power at any moment, and whether these are all.

        Args:
            limit: How many at most; if there are more, as many are drawn.
            seed: Of what is drawn.
        """
        found: dict[object, State] = {}
        for state in self._all():
            found.setdefault((state.tree, self._mark_before(state.at)), state)
            if len(found) > limit:
                break
        else:
            return list(found.values()), True
        found, chance = {}, random.Random(seed)
        for _ in range(20 * limit):
            state = self._drawn(chance)
            found.setdefault((state.tree, self._mark_before(state.at)), state)
            if len(found) == limit:
                break
        return list(found.values()), False

    def _mark_before(self, at: int) -> int:
        return sum(when < at for when, _ in self.marks)

    def _pending(self, at: int) -> tuple[list[_Change], list[_Change]]:
        """The changes of names that are on the disk, and those that may be."""
        done, pending = [], []
        for change in self._changes:
            if change.at < at:
                is_synced = all(
                    change.at < self._nodes[folder].covered(at) for folder, _, _ in change.names
                )
                (done if is_synced else pending).append(change)
        return done, pending

    def _named(self, changes: Sequence[_Change]) -> dict[int, dict[str, int]]:
        names = {number: dict(each) for number, each in self._names.items()}
        _apply(names, sorted(changes))
        return names

    def _all(self) -> Iterator[State]:
        for at in range(self.num_events + 1):
            done, pending = self._pending(at)
            for chosen in itertools.product((False, True), repeat=len(pending)):
                kept = [each for each, is_kept in zip(pending, chosen, strict=True) if is_kept]
                names = self._named([*done, *kept])
                unsynced = [number for number in _reachable(names) if self._unsynced(number, at)]
                for variants in itertools.product(_VARIANTS, repeat=len(unsynced)):
                    choice = dict(zip(unsynced, variants, strict=True))
                    yield self._state(at, names, choice, random.Random(at))

    def _drawn(self, chance: random.Random) -> State:
        at = chance.randint(0, self.num_events)
        done, pending = self._pending(at)
        # Most of what is pending, half of it, or little: what one alone can spoil is drawn, too.
        share = chance.choice((0.1, 0.5, 0.9))
        names = self._named([*done, *(each for each in pending if chance.random() < share)])
        unsynced = [number for number in _reachable(names) if self._unsynced(number, at)]
        choice = {number: chance.choice(_VARIANTS) for number in unsynced}
        return self._state(at, names, choice, chance)

    def _unsynced(self, number: int, at: int) -> bool:
        node = self._nodes[number]
        covered = node.covered(at)
        return any(covered <= write.at < at for write in node.writes)

    def _state(
        self,
        at: int,
        names: dict[int, dict[str, int]],
        variants: dict[int, str],
        chance: random.Random,
    ) -> State:
        tree, numbers = [], []
        for number, path in _reachable(names).items():
            node = self._nodes[number]
            content: str | bytes | None = node.link or None
            if node.content is not None:
                content = self._content(node, at, variants.get(number, "all"), chance)
            tree.append((path, content))
            numbers.append(number)
        return State(at, tuple(tree), tuple(numbers))

    def _content(self, node: _Node, at: int, variant: str, chance: random.Random) -> bytes:
        covered = node.covered(at)
        safe = _written(node.content or b"", [each for each in node.writes if each.at < covered])
        full = _written(node.content or b"", [each for each in node.writes if each.at < at])
        if variant == "nothing":
            return safe
        if variant == "cut":
            return full[: chance.randint(min(len(safe), len(full)), len(full))]
        if variant in ("zeros", "garbage", "pages"):
            return _spoiled(safe, full, variant, chance)
        return full

    def rebuild(self, state: State, folder: Path) -> dict[str, int]:
        """Make a folder, new and empty, what the root may be; as if it were an hour ago.

        Returns:
            The number that each path's file or folder had, for what compares these.
        """
        now, inodes = time.time() - _AGE_S, {}
        times = []
        for (path, content), number in zip(state.tree, state.nodes, strict=True):
            target = folder / path
            if self._nodes[number].is_folder:
                target.mkdir(exist_ok=True)
            elif isinstance(content, str):
                target.symlink_to(content)
            else:
                target.write_bytes(content or b"")
            inodes[str(target)] = number
            last = max((write.at for write in self._nodes[number].writes), default=0)
            times.append((target, now + last / 100))
        for target, when in reversed(times):
            os.utime(target, (when, when), follow_symlinks=False)
        return inodes

    def node(self, number: int) -> tuple[int, os.stat_result | None]:
        """The kernel's number of a file, and what it was in the beginning, if it was there."""
        return self._nodes[number].inode, self._nodes[number].stat


def _apply(names: dict[int, dict[str, int]], changes: Sequence[_Change]) -> None:
    for change in changes:
        for folder, name, number in change.names:
            if number is None:
                names[folder].pop(name, None)
            else:
                names[folder][name] = number


def _reachable(names: dict[int, dict[str, int]]) -> dict[int, str]:
    """Of what has a name: its path, folders before what is in them."""
    found, todo = {0: ""}, [0]
    while todo:
        folder = todo.pop()
        for name, number in names.get(folder, {}).items():
            # A folder of which two names are on the disk has one after the check of the disk.
            if number not in found:
                found[number] = f"{found[folder]}/{name}".lstrip("/")
                todo.append(number)
    return found


def _written(content: bytes, writes: Sequence[_Write]) -> bytes:
    found = bytearray(content)
    for write in writes:
        end = write.offset + len(write.data or b"")
        if len(found) < end:
            found.extend(bytes(end - len(found)))
        if write.data is None:
            del found[write.offset :]
        else:
            found[write.offset : end] = write.data
    return bytes(found)


def _spoiled(safe: bytes, full: bytes, variant: str, chance: random.Random) -> bytes:
    """As long as all of it, but with something else where something was to be written."""
    found = bytearray(full)
    for begin in range(0, len(full), _PAGE):
        page = full[begin : begin + _PAGE]
        old = safe[begin : begin + _PAGE].ljust(len(page), b"\0")[: len(page)]
        if page == old or (variant == "pages" and chance.random() < 0.5):
            continue
        found[begin : begin + len(page)] = (
            chance.randbytes(len(page)) if variant == "garbage" else old
        )
    return bytes(found)
