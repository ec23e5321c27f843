"""What a card runs as one, though it consists of several operators here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._binding import C


@contextlib.contextmanager
def one_launch() -> Iterator[None]:
    """Count what this thread runs in the block as one launch; in lazy mode it is the graph's."""
    C.begin_launch()
    try:
        yield
    finally:
        C.end_launch()
