"""Profiles the calls of a function with cProfile."""

from __future__ import annotations

import cProfile
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...._missing import missing


def cprofile(dirname: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorates a function so that each call writes its profile; its result is dropped.

    Args:
        dirname: The folder for the files, `{function}_{process}_{call}`.

    Raises:
        RuntimeError: There is a file of that name.
    """
    folder = Path(dirname)
    if folder.exists() and not folder.is_dir():
        raise RuntimeError(f"{dirname} is a file, and profiles go into a folder. Name another.")
    folder.mkdir(parents=True, exist_ok=True)

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        calls = itertools.count()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            with cProfile.Profile() as profile:
                function(*args, **kwargs)
            profile.dump_stats(folder / f"{function.__name__}_{os.getpid()}_{next(calls)}")

        return wrapper

    return decorate


__getattr__ = missing(__name__)
