"""Numbers and arrays of NumPy in a pickle, of kinds that are no pointers.

NumPy's own way takes any dtype, and lets a pickle alter one that an array has already: bytes of the
pickle would become addresses of objects. So dtypes stay as they are made here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import RefusedError

_KINDS = "?biufcSU"
_NATIVE = ("=", "|", "<" if sys.byteorder == "little" else ">")


def dtype(name: str, *options: Any) -> np.dtype[Any]:
    """A dtype of numbers or text.

    Raises:
        RefusedError: It is one of objects, records or times.
    """
    found = np.dtype(str(name))
    if found.kind not in _KINDS or found.fields is not None or found.subdtype is not None:
        raise RefusedError(f"an array of dtype {found}")
    return found


def scalar(kind: np.dtype[Any], content: bytes | str) -> Any:
    """One value.

    Args:
        kind: Of `dtype`.
        content: Its bytes; a text in latin-1 is what they are in old pickles.
    """
    raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
    return np.frombuffer(raw, dtype(kind.str), count=1)[0]


def empty_array(*options: Any) -> np.ndarray[Any, Any]:
    """An array that gets its shape and values by `build`."""
    return np.empty(0)


def build(target: Any, state: Any) -> None:
    """Give an array what it holds; a dtype stays as it is.

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
    raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
    target.__setstate__((version, tuple(shape), dtype(kind.str), bool(is_fortran), raw))
