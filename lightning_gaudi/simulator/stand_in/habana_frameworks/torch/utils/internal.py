"""Which execution mode this process runs in."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..._missing import missing


@functools.cache
def is_lazy() -> bool:
    """Whether operations are gathered into graphs (lazy mode); read once from the environment.

    Source: `PT_HPU_LAZY_MODE`; eager ("0") is the default since release 1.21.
    """
    return (os.environ.get("PT_HPU_LAZY_MODE") or "0") != "0"


def lazy_only(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function` do nothing in eager mode; its result is dropped in both modes."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if is_lazy():
            function(*args, **kwargs)

    return wrapper


class Timer:
    """Measures the seconds that a `with` block takes."""

    def __init__(self) -> None:
        self.start_t = 0.0
        self.end_t = 0.0

    def __enter__(self) -> Timer:
        self.start_t = perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_t = perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds between entering and leaving the block."""
        return self.end_t - self.start_t


__getattr__ = missing(__name__)
