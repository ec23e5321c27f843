"""The compiler's logs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...._missing import missing
from ...utils.debug import Logger


def get_compile_backend_logger() -> Logger:
    """Returns the logger of `hpu_backend`."""
    return Logger("PT_COMPILE")


def get_fx_graph_logger() -> Logger:
    """Returns the logger of its graphs."""
    return Logger("PT_COMPILE FX GRAPH")


def log_function_start_end(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Logs when a function starts, with its arguments, and when it ends."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        log = get_compile_backend_logger()
        log.debug("%s starts with %s, %s", fn.__name__, args, kwargs)
        result = fn(*args, **kwargs)
        log.debug("%s ends", fn.__name__)
        return result

    return wrapper


__getattr__ = missing(__name__)
