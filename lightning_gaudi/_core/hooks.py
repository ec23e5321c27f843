"""Hooks by which a tool takes part in a run; an ordinary run has no listeners.

A tool installs itself here when a user asks for it. The callers know nothing of tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Sizes = Callable[[], tuple[int, int]]
"""Returns the bytes of a checkpoint: of the files of all ranks, and of those of this rank."""

_before_write: list[Callable[[Sizes], None]] = []
_has_values = True


def before_write(sizes: Sizes) -> None:
    """Tells listeners that a checkpoint is complete in memory and is about to be written.

    Args:
        sizes: Returns its size; called by listeners that want to know.

    Raises:
        BaseException: Any error of a listener; nothing is written then.
    """
    for listener in _before_write:
        listener(sizes)


def is_written_at_once() -> bool:
    """Returns whether there is no listener that may prevent a checkpoint from being written.

    If there is one, nothing is copied before it has been told.
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
    """Returns whether the values of tensors matter; if not, no weights need to be read."""
    return _has_values


def run_without_values() -> None:
    """Declares that this process computes only shapes and sizes from now on."""
    global _has_values
    _has_values = False
