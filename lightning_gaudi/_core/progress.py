"""What this process is doing, noted for whoever watches it, and which run it is part of.

A note is a few words in memory. It costs a tuple and, where somebody watches from another process,
a copy of it into memory that both have. Nobody waits for a device, a store or a lock because of it.
The copy is there to be read while this process lets no Python run, as in much of the vendor's C
code.
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


RECORD_BYTES = 512
"""How much memory a copy takes."""

_NUMBER = struct.Struct("<Q")
_RECORD = struct.Struct("<q?qqd64s64s64s")
_TRIES = 20

_START = "the start"

_now = Whereabouts(0, _START, False, (0, 0), None, None, time.monotonic())
_copy: mmap | None = None
_number = 0
"""Even while the copy is whole, odd while it is written."""


def now() -> Whereabouts:
    """Returns where the thread that trains is; for other threads."""
    return _now


def copy_to(memory: mmap | None) -> None:
    """Copies this note and all later ones to the first `RECORD_BYTES` of some memory.

    Args:
        memory: Shared with those who watch; None to copy no longer.
    """
    global _copy
    _copy = memory
    if memory is not None:
        _note(_now)


def _forget() -> None:
    """Forgets what is watched: a fork is another process."""
    global _copy
    _copy = None


os.register_at_fork(after_in_child=_forget)


def _note(found: Whereabouts) -> None:
    global _now, _number
    _now = found
    if (memory := _copy) is None:
        return
    _number += 2
    _NUMBER.pack_into(memory, 0, _number - 1)
    _RECORD.pack_into(
        memory,
        _NUMBER.size,
        found.step,
        found.is_training,
        *found.position,
        found.since,
        found.place.encode(),
        (found.collective or "").encode(),
        (found.last_collective or "").encode(),
    )
    _NUMBER.pack_into(memory, 0, _number)


def read(memory: mmap) -> Whereabouts | None:
    """Returns what another process has copied; None if it is not there, or makes no sense."""
    for _ in range(_TRIES):
        (before,) = _NUMBER.unpack_from(memory, 0)
        values = _RECORD.unpack_from(memory, _NUMBER.size)
        (after,) = _NUMBER.unpack_from(memory, 0)
        if before == after and not before % 2:
            return _made_of(values) if before else None
    return None


def _made_of(values: tuple[Any, ...]) -> Whereabouts | None:
    step, is_training, batch, count, since, *names = values
    if not math.isfinite(since):
        return None
    place, *collectives = (name.rstrip(b"\0").decode(errors="replace") for name in names)
    current, last = (name or None for name in collectives)
    return Whereabouts(step, place, is_training, (batch, count), current, last, since)


def enter(
    place: str, step: int | None = None, *, is_training: bool, new_batch: bool = False
) -> None:
    """Notes a place.

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


def untold() -> Whereabouts:
    """Returns what is known of a process that has noted nothing yet."""
    return Whereabouts(
        0, "a place that it told nobody", False, (0, 0), None, None, time.monotonic()
    )


def here() -> str:
    """Returns where this rank is, in a few words."""
    return f"step {_now.step}, {_now.place}"


@contextlib.contextmanager
def elsewhere(place: str) -> Iterator[None]:
    """Notes that a block does what may take long, such as to save a checkpoint."""
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
    _note(here._replace(since=time.monotonic()))
    try:
        yield
    finally:
        _note(_now._replace(collective=None, since=time.monotonic()))


MAX_AHEAD_S = 86400.0
"""How far the clock of another machine may be ahead of this one's."""


class Session(NamedTuple):
    """A fit. One that resumes has the name of the run that it goes on with, and begins later."""

    run: str
    began: float
    """In seconds since 1970."""


_current: Session | None = None


def begin_session() -> None:
    """Notes that a fit begins, of a new run as far as is known yet."""
    global _current
    _current = Session(uuid.uuid4().hex, time.time())


def continue_run(run: str, began: float = 0.0) -> None:
    """Notes that the fit goes on with an earlier run.

    Args:
        run: Its name.
        began: When the fit of it began that this one goes on from, in seconds since 1970. This one
            began later, though the clock of its machine may be behind: what it saves is newer.
    """
    global _current
    current = current_session()
    if began > current.began + MAX_AHEAD_S:  # it counts as one that says nothing
        began = 0.0
    _current = Session(run, max(current.began, math.nextafter(began, math.inf)))


def current_session() -> Session:
    """Returns the fit that this process is in; one begins if there is none."""
    if _current is None:
        begin_session()
    assert _current is not None
    return _current


_num_fits: Counter[str] = Counter()
"""How often each model's class has been fitted in this process."""


def count_fit(model: str) -> int:
    """Returns how many fits of this process came before this one.

    Args:
        model: The name of the model's class, which has a count of its own.
    """
    _num_fits[model] += 1
    return _num_fits[model] - 1
