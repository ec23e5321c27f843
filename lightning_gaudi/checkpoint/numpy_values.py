"""Loads NumPy's numbers and arrays from a pickle, but none whose values are pointers.

NumPy's own functions take any dtype, and let a pickle alter the dtype of an array that it has made:
bytes of the pickle would become addresses of objects. So a dtype stays as it is made here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import ExceededError, RefusedError

_MAX_NAME = 32
"""How long the name of a dtype may be, in characters."""

_MAX_EMPTY = 10**4
"""How many empty texts an array may have along an axis: they take no bytes of the file."""

# Booleans, integers, floats, complex numbers, bytes and text; without "O", objects, and "V",
# records.
_KINDS = "?biufcSU"
_NATIVE = ("=", "|", "<" if sys.byteorder == "little" else ">")


def dtype(name: str, *options: Any) -> np.dtype[Any]:
    """Returns a dtype of numbers or text, in the place of `numpy.dtype`.

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
    """Returns one value, in the place of NumPy's `scalar`.

    Args:
        kind: Of `dtype`.
        content: Its bytes, which pickles of Python 2 hold as a text in latin-1.
    """
    return np.frombuffer(_raw(content), dtype(kind.str), count=1)[0]


def _raw(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("latin1")
    if not isinstance(content, (bytes, bytearray)):
        raise RefusedError("an array without bytes")
    return bytes(content)


def empty_array(*options: Any) -> np.ndarray[Any, Any]:
    """Returns an array that `build` fills, in the place of NumPy's `_reconstruct`."""
    return np.empty(0)


def build(target: Any, state: Any) -> None:
    """Gives an array its shape and values; a dtype stays as it is.

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
        raise ExceededError(f"an array of more than {_MAX_EMPTY:,} empty texts along an axis")
    # NumPy compares the length of the bytes with shape and dtype, and raises if they differ.
    target.__setstate__((version, shape, values, bool(is_fortran), _raw(content)))
