"""What this process is doing, noted for whoever watches it: a few words in plain memory.

A note costs a tuple. Nobody waits for a device, a store or a lock because of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
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


_START = "the start"

_now = Whereabouts(0, _START, False, (0, 0), None, None, time.monotonic())


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
    global _now
    batch, count = _now.position
    _now = Whereabouts(
        _now.step if step is None else step,
        place,
        is_training,
        (batch + 1, 0) if new_batch else (batch, count + 1),
        None,
        _now.last_collective,
        time.monotonic(),
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
    global _now
    _now = _now._replace(collective=collective, last_collective=collective, since=time.monotonic())
    try:
        yield
    finally:
        _now = _now._replace(collective=None, since=time.monotonic())
