"""Notes what this process is doing for those who watch it, and which run it belongs to.

A note is a tuple in memory, and if another process watches, a copy in shared memory. It waits for
no device, store or lock. The copy can be read while this process holds the GIL, as in much of the
vendor's C code.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from mmap import mmap
from typing import Any, NamedTuple


class Whereabouts(NamedTuple):
    """What the training thread is doing."""

    step: int
    """The step of the optimizer, from 1 on; 0 before the first."""
    place: str
    """Such as "forward", "backward", "validation"."""
    is_training: bool
    """Whether it is between the end of a fit's first step and that of its last."""
    position: tuple[int, int]
    """The number of the batch, and of the note within it; the same on ranks in the same place."""
    collective: str | None
    """The collective in which it waits for other ranks, or None."""
    last_collective: str | None
    since: float
    """When it came here, in seconds of `time.monotonic`."""
    pace: tuple[float, float] = (0.0, 0.0)
    """What it took for what it does by itself, on the host and on its card; see `note_pace`."""


RECORD_BYTES = 512
"""The memory of a copy."""

_NUMBER = struct.Struct("<Q")
_RECORD = struct.Struct("<q?qqddd64s64s64s")
_TRIES = 20

_START = "the start"

_now = Whereabouts(0, _START, False, (0, 0), None, None, time.monotonic())
_copy: mmap | None = None
_waited_s = 0.0
_number = 0
"""The version of the copy: even when it is whole, odd while it is being written (a seqlock)."""


def now() -> Whereabouts:
    """Returns what the training thread is doing, for other threads."""
    return _now


def copy_to(memory: mmap | None) -> None:
    """Copies this note and all later ones to the first `RECORD_BYTES` of some memory.

    Args:
        memory: Shared with those who watch; None to stop copying.
    """
    global _copy
    _copy = memory
    if memory is not None:
        _note(_now)


def is_watched() -> bool:
    """Returns whether another process reads these notes."""
    return _copy is not None


def _forget() -> None:
    """Stops copying in a forked process, which must not write its parent's notes."""
    global _copy
    _copy = None


# The shared memory stays mapped in a fork.
os.register_at_fork(after_in_child=_forget)


def _note(found: Whereabouts) -> None:
    global _now, _number
    _now = found
    if (memory := _copy) is None:
        return
    # An odd number first, and the even one last: a reader in between sees that the record is not
    # whole.
    _number += 2
    _NUMBER.pack_into(memory, 0, _number - 1)
    _RECORD.pack_into(
        memory,
        _NUMBER.size,
        found.step,
        found.is_training,
        *found.position,
        found.since,
        *found.pace,
        found.place.encode(),
        (found.collective or "").encode(),
        (found.last_collective or "").encode(),
    )
    _NUMBER.pack_into(memory, 0, _number)


def read(memory: mmap) -> Whereabouts | None:
    """Returns the note of another process; None if there is none, or it makes no sense."""
    for _ in range(_TRIES):
        (before,) = _NUMBER.unpack_from(memory, 0)
        values = _RECORD.unpack_from(memory, _NUMBER.size)
        (after,) = _NUMBER.unpack_from(memory, 0)
        # The record is whole only if its number was even and did not change while it was read.
        if before == after and not before % 2:
            return _made_of(values) if before else None
    return None


def _made_of(values: tuple[Any, ...]) -> Whereabouts | None:
    step, is_training, batch, count, since, host_s, card_s, *names = values
    if not math.isfinite(since + host_s + card_s):
        return None
    place, *collectives = (name.rstrip(b"\0").decode(errors="replace") for name in names)
    current, last = (name or None for name in collectives)
    position, pace = (batch, count), (host_s, card_s)
    return Whereabouts(step, place, is_training, position, current, last, since, pace)


def enter(
    place: str, step: int | None = None, *, is_training: bool, new_batch: bool = False
) -> None:
    """Notes where this process is now.

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
            _now.pace,
        )
    )


def note_pace(host_s: float, card_s: float) -> None:
    """Notes what this rank takes for what it does by itself.

    Args:
        host_s: Seconds of the host, what it waits for others left out.
        card_s: Seconds of its card; 0 if that is not known.
    """
    _note(_now._replace(pace=(host_s, card_s)))


def waited_s() -> float:
    """Returns for how many seconds this process has waited for other ranks, all together."""
    return _waited_s


def untold() -> Whereabouts:
    """Returns the note of a process that has noted nothing yet."""
    return Whereabouts(
        0, "a place that it told nobody", False, (0, 0), None, None, time.monotonic()
    )


def here() -> str:
    """Returns where this rank is, in a few words."""
    return f"step {_now.step}, {_now.place}"


@contextlib.contextmanager
def elsewhere(place: str) -> Iterator[None]:
    """Notes that a block does something that may take long, such as saving a checkpoint."""
    before = _now
    enter(place, is_training=False)
    try:
        yield
    finally:
        enter(before.place, is_training=before.is_training)


@contextlib.contextmanager
def waiting(collective: str) -> Iterator[None]:
    """Notes that a block waits for other ranks.

    Args:
        collective: Its name.
    """
    here = _now._replace(collective=collective, last_collective=collective)
    global _waited_s
    began = time.monotonic()
    _note(here._replace(since=began))
    try:
        yield
    finally:
        ended = time.monotonic()
        _waited_s += ended - began
        _note(_now._replace(collective=None, since=ended))


MAX_AHEAD_S = 86400.0
"""How far the clock of another machine may be ahead of this one's."""


class Session(NamedTuple):
    """A fit, which has the name of the run that it starts or resumes."""

    run: str
    began: float
    """In seconds since 1970."""


_current: Session | None = None


def begin_session() -> None:
    """Notes that a fit begins, of a new run until `continue_run` says otherwise."""
    global _current
    _current = Session(uuid.uuid4().hex, time.time())


def continue_run(run: str, began: float = 0.0) -> None:
    """Notes that the fit goes on with an earlier run.

    Args:
        run: Its name.
        began: When the fit that is resumed began, in seconds since 1970.
    """
    global _current
    current = current_session()
    # A time that far ahead is not believed.
    if began > current.began + MAX_AHEAD_S:
        began = 0.0
    # Later than the fit that it resumes, even if this machine's clock is behind, so that its
    # checkpoints sort as newer.
    _current = Session(run, max(current.began, math.nextafter(began, math.inf)))


def current_session() -> Session:
    """Returns the fit of this process, which begins here if there is none."""
    if _current is None:
        begin_session()
    assert _current is not None
    return _current


_num_fits: Counter[str] = Counter()
"""How often each model's class has been fitted in this process."""


def count_fit(model: str) -> int:
    """Counts a fit, and returns how many of its class came before it in this process.

    Args:
        model: The name of the model's class, which has a count of its own.
    """
    _num_fits[model] += 1
    return _num_fits[model] - 1
