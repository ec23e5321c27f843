"""Whether this process is one that `lightning-gaudi plan` has started: no tensor has values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""The file with what such a process is to rehearse."""


def is_rehearsal() -> bool:
    """Whether this process is one of a plan's, where nobody reads a value.

    A program that reads weights need not have them then: their sizes say all.
    """
    return bool(os.environ.get(VARIABLE))


@dataclass
class Weight:
    """How large a checkpoint is, in bytes."""

    whole: int = 0
    """All files, of all ranks."""
    of_rank: int = 0
    """What this rank writes."""


class _Weighed(BaseException):
    """Its size is known: nothing of it is written."""


_weight: Weight | None = None


@contextmanager
def weighing() -> Iterator[Weight]:
    """Have the checkpoint that is saved at the end of this block not be written, but weighed."""
    global _weight
    _weight = found = Weight()
    try:
        yield found
    except _Weighed:
        pass
    finally:
        _weight = None


def is_weighing() -> bool:
    """Whether no checkpoint is written, so that nobody needs a copy of what is saved."""
    return _weight is not None


def weigh(measure: Callable[[], tuple[int, int]]) -> None:
    """Tell how large a checkpoint is before it is written, if that is all that is asked for.

    Args:
        measure: Gives the fields of `Weight`.
    """
    if _weight is not None:
        _weight.whole, _weight.of_rank = measure()
        raise _Weighed
