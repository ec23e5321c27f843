"""Counts as one launch what a card runs as one, though it is several operators here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._binding import C


@contextlib.contextmanager
def one_launch() -> Iterator[None]:
    """Counts what this thread runs in the block as one launch, or as the graph's in lazy mode."""
    C.begin_launch()
    try:
        yield
    finally:
        C.end_launch()


@contextlib.contextmanager
def one_kernel() -> Iterator[None]:
    """Runs in the block what a card has one kernel for: a launch whose parts meet no rules."""
    C.pause_rules()
    try:
        with one_launch():
            yield
    finally:
        C.resume_rules()
