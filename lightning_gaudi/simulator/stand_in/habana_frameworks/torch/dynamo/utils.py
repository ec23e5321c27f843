"""Small things for nested lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._missing import missing


def auto_map(f: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `f` work on each element of nested lists and tuples."""

    def wrapper(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, list | tuple):
            return type(x)(wrapper(element, *args, **kwargs) for element in x)
        return f(x, *args, **kwargs)

    return wrapper


def str_join(inp: Any) -> str:
    """Returns a nested list as text, with `str` of what is in it."""
    if not isinstance(inp, list | tuple):
        return str(inp)
    text = ", ".join(map(str_join, inp))
    return f"[{text}]" if isinstance(inp, list) else f"({text})"


__getattr__ = missing(__name__)
