"""What a card runs as one, though it consists of several operators here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._binding import C


@contextlib.contextmanager
def one_launch() -> Iterator[None]:
    """Counts what this thread runs in the block as one launch; in lazy mode it is the graph's."""
    C.begin_launch()
    try:
        yield
    finally:
        C.end_launch()


@contextlib.contextmanager
def one_kernel() -> Iterator[None]:
    """Runs what a card has a kernel for: one launch, and its parts meet no rules of the card's."""
    C.pause_rules()
    try:
        with one_launch():
            yield
    finally:
        C.resume_rules()
