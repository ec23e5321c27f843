"""What this process is doing, noted for whoever watches it: a few words in plain memory.

A note costs a tuple. Nobody waits for a device, a store or a lock because of it. Where the ranks
are watched the note also lies in memory that other processes of the host read, see `Page`: they
know where this process is while it lets no Python run.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Whereabouts(NamedTuple):
    """Where the thread that trains is."""

    step: int
    """The step of the optimizer, from 1 on; 0 before the first."""
    place: str
    """Such as "forward", "backward", "validation"."""
    is_training: bool
    """Whether it is between the end of a fit's first step and the end of its last."""
    position: tuple[int, int]
    """Grows with each batch, and with each note within one; ranks that train make the same."""
    collective: str | None
    """What it waits for other ranks in, or None."""
    last_collective: str | None
    since: float
    """When it came here, in seconds of `time.monotonic`."""


class Page:
    """A note in memory that other processes of this host read, without this one taking part.

    Two numbers before the note tell whether it was read while it was written: the writer makes them
    differ for that moment.
    """

    _NOTE = struct.Struct("<dqqq?63s64s64s")
    _BYTES = 4096
    _TICK_AT, _STATE_AT, _NOTE_AT = 16, 24, 64

    def __init__(self) -> None:
        # Memory, and no file on a disk: it ends with the process, killed or not.
        self._file = os.fdopen(os.memfd_create("whereabouts"), "r+b", buffering=0)
        self._file.truncate(self._BYTES)
        self._memory = mmap.mmap(self._file.fileno(), self._BYTES)
        self._number = 0

    @property
    def path(self) -> str:
        """Where other processes of this host find it."""
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def write(self, note: Whereabouts) -> None:
        """Writes a note in place of the last one."""
        self._number += 1
        self._memory[0:8] = self._number.to_bytes(8, "little")
        self._NOTE.pack_into(
            self._memory,
            self._NOTE_AT,
            note.since,
            note.step,
            *note.position,
            note.is_training,
            note.place.encode()[:63],
            (note.collective or "").encode()[:64],
            (note.last_collective or "").encode()[:64],
        )
        self._memory[8:16] = self._number.to_bytes(8, "little")

    def tick(self, state: str) -> None:
        """Notes that Python runs in this process, and in a word what the process is about."""
        self._memory[self._STATE_AT : self._STATE_AT + 16] = state.encode()[:16].ljust(16, b"\0")
        struct.pack_into("<d", self._memory, self._TICK_AT, time.monotonic())

    @classmethod
    def read(cls, path: str) -> tuple[Whereabouts, float, str] | None:
        """Returns what a process has written: the note, when Python ran last, and the state.

        Args:
            path: That of its page.

        Returns:
            None if the process is gone, or is writing.
        """
        try:
            with Path(path).open("rb", buffering=0) as file:
                before, data = os.pread(file.fileno(), 16, 0), os.pread(file.fileno(), 512, 0)
                after = os.pread(file.fileno(), 16, 0)
        except OSError:
            return None
        if len(data) < 512 or not before == data[:16] == after or data[:8] != data[8:16]:
            return None
        since, step, batch, count, is_training, *texts = cls._NOTE.unpack_from(data, cls._NOTE_AT)
        place, collective, last = (
            each.rstrip(b"\0").decode(errors="replace") or None for each in texts
        )
        position = (batch, count)
        note = Whereabouts(step, place or "", is_training, position, collective, last, since)
        (ticked,) = struct.unpack_from("<d", data, cls._TICK_AT)
        state = data[cls._STATE_AT : cls._STATE_AT + 16].rstrip(b"\0").decode(errors="replace")
        return note, ticked, state


_START = "the start"

_now = Whereabouts(0, _START, False, (0, 0), None, None, time.monotonic())

_page: Page | None = None


def share() -> Page:
    """Returns the page on which this process notes where it is from now on."""
    global _page
    if _page is None:
        _page = Page()
        _page.write(_now)
    return _page


def _forget_page() -> None:
    """Has a fork, such as a worker of a loader, write nothing on the page of its parent."""
    global _page
    _page = None


os.register_at_fork(after_in_child=_forget_page)


def _note(found: Whereabouts) -> None:
    global _now
    _now = found
    if _page is not None:
        _page.write(found)


def now() -> Whereabouts:
    """Where the thread that trains is; for other threads."""
    return _now


def enter(
    place: str, step: int | None = None, *, is_training: bool, new_batch: bool = False
) -> None:
    """Note a place.

    Args:
        place: In a word or two.
        step: The step of the optimizer, from 1 on; by default that of the last note.
        is_training: See `Whereabouts`.
        new_batch: Whether the next batch begins here.
    """
    batch, count = _now.position
    _note(
        Whereabouts(
            _now.step if step is None else step,
            place,
            is_training,
            (batch + 1, 0) if new_batch else (batch, count + 1),
            None,
            _now.last_collective,
            time.monotonic(),
        )
    )


@contextlib.contextmanager
def elsewhere(place: str) -> Iterator[None]:
    """Note that a block does what may take long, such as to save a checkpoint."""
    before = _now
    enter(place, is_training=False)
    try:
        yield
    finally:
        enter(before.place, is_training=before.is_training)


@contextlib.contextmanager
def waiting(collective: str) -> Iterator[None]:
    """Note that a block waits for other ranks.

    Args:
        collective: Its name.
    """
    now = time.monotonic()
    _note(_now._replace(collective=collective, last_collective=collective, since=now))
    try:
        yield
    finally:
        _note(_now._replace(collective=None, since=time.monotonic()))
