"""Offers `get_...` and `set_...` for switches that the vendor's package reads from the environment.

Most of them tune what a CPU does not have. Their values are kept, so that a program that asks gets
the card's answer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import is_switched_on

from ..._missing import missing
from ..._release import is_lazy, release

_values: dict[str, Any] = {}
"""The values that were read, once, or set."""


def _get(flag: vendor_names.Flag) -> Any:
    if flag.name not in _values:
        _values[flag.name] = _read(flag)
    return _values[flag.name]


def _read(flag: vendor_names.Flag) -> Any:
    value = os.environ.get(flag.name)
    if not value:
        if flag.name == "PT_ENABLE_INT64_SUPPORT":
            return not is_lazy()
        return vendor_names.by_release(flag.defaults, release())
    if flag.kind == "bool":
        return is_switched_on(value)
    return int(value, 0) if flag.kind == "int" else value


def _set(flag: vendor_names.Flag, value: Any) -> None:
    _values[flag.name] = value


@contextlib.contextmanager
def env_setting(var: str, val: Any) -> Iterator[None]:
    """Sets a switch within a `with` block.

    Args:
        var: Its name; one of those that can be set.
        val: The value.
    """
    before = __getattr__(f"get_{var.lower()}")()
    set_value = __getattr__(f"set_{var.lower()}")
    set_value(val)
    try:
        yield
    finally:
        set_value(before)


_missing = missing(__name__)


def __getattr__(name: str) -> Callable[..., Any]:
    kind, _, key = name.partition("_")
    flag = vendor_names.flags().get(key.upper())
    if flag is not None and flag.is_in(release()):
        if kind == "get":
            return lambda: _get(flag)
        if kind == "set" and flag.is_settable(release()):
            return lambda value: _set(flag, value)
    return _missing(name)
