"""Moments at which a tool may take part in a run; in an ordinary one nobody does.

A tool installs itself here when it is asked for; who calls these functions knows of no tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Sizes = Callable[[], tuple[int, int]]
"""Gives the bytes of a checkpoint: those of all ranks' files, and those of this rank's."""

_before_write: list[Callable[[Sizes], None]] = []
_has_values = True


def before_write(sizes: Sizes) -> None:
    """Tells who listens that a checkpoint is complete in memory, and will be written now.

    Args:
        sizes: How large it is. It is called by who wants to know, before anything is written.

    Raises:
        BaseException: What a listener raises; then nothing is written.
    """
    for listener in _before_write:
        listener(sizes)


def is_written_at_once() -> bool:
    """Returns whether nobody listens who may keep a checkpoint from being written.

    Where somebody does, nothing is copied before the listener has been told.
    """
    return not _before_write


@contextmanager
def listening_before_write(listener: Callable[[Sizes], None]) -> Iterator[None]:
    """Calls `listener` before each checkpoint that is written within this block."""
    _before_write.append(listener)
    try:
        yield
    finally:
        _before_write.remove(listener)


def has_values() -> bool:
    """Returns whether somebody will read values of tensors; else no weights need be read."""
    return _has_values


def run_without_values() -> None:
    """Says that this process computes shapes and sizes alone, from now on."""
    global _has_values
    _has_values = False
