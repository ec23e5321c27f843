"""Says in which execution mode this process runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..._missing import missing
from ..._release import is_lazy


def lazy_only(func: Callable[..., None]) -> Callable[..., None]:
    """Makes `func` do nothing in eager mode; its result is dropped in both modes."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if is_lazy():
            func(*args, **kwargs)

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
