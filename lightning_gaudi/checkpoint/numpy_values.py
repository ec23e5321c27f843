"""Numbers and arrays of NumPy in a pickle, of kinds that are no pointers.

NumPy's own way takes any dtype, and lets a pickle alter one that an array has already: bytes of the
pickle would become addresses of objects. So dtypes stay as they are made here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import ExceededError, RefusedError

_MAX_NAME = 32
"""How long the name of a dtype may be, in characters."""

_MAX_EMPTY = 10**4
"""How many texts without characters an array may have along an axis: they take no bytes."""

_KINDS = "?biufcSU"
_NATIVE = ("=", "|", "<" if sys.byteorder == "little" else ">")


def dtype(name: str, *options: Any) -> np.dtype[Any]:
    """Returns a dtype of numbers or text.

    Raises:
        RefusedError: It is one of objects, records or times.
    """
    if not isinstance(name, str) or len(name) > _MAX_NAME:
        raise RefusedError("an array whose dtype has no name")
    found = np.dtype(name)
    if found.kind not in _KINDS or found.fields is not None or found.subdtype is not None:
        raise RefusedError(f"an array of dtype {found}")
    return found


def scalar(kind: np.dtype[Any], content: bytes | str) -> Any:
    """Returns one value.

    Args:
        kind: Of `dtype`.
        content: Its bytes; a text in latin-1 is what they are in old pickles.
    """
    return np.frombuffer(_raw(content), dtype(kind.str), count=1)[0]


def _raw(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("latin1")
    if not isinstance(content, (bytes, bytearray)):
        raise RefusedError("an array without bytes")
    return bytes(content)


def empty_array(*options: Any) -> np.ndarray[Any, Any]:
    """Returns an array that gets its shape and values by `build`."""
    return np.empty(0)


def build(target: Any, state: Any) -> None:
    """Gives an array what it holds; a dtype stays as it is.

    Args:
        target: Of `empty_array` or `dtype`.
        state: NumPy's.

    Raises:
        RefusedError: It is none for numbers or text of this machine's byte order.
    """
    if isinstance(target, np.dtype):
        if state[1] not in _NATIVE:
            raise RefusedError(f"an array of dtype {target} in byte order {state[1]!r}")
        return
    version, shape, kind, is_fortran, content = state
    if not isinstance(shape, tuple) or not isinstance(kind, np.dtype):
        raise RefusedError("an array without a shape or a dtype")
    values = dtype(kind.str)
    if values.itemsize == 0 and any(isinstance(each, int) and each > _MAX_EMPTY for each in shape):
        raise ExceededError("an array of more texts without characters than anybody has")
    target.__setstate__((version, shape, values, bool(is_fortran), _raw(content)))
