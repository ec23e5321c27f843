"""Pickles that this process has written: it may load them again, whatever classes they name.

Lightning's Tuner, `validate(ckpt_path="best")` and the like load what the same process has saved a
moment before, with an enumeration or a class of the user's in its hyperparameters. A pickle is
known by the SHA-256 of all its bytes, so nobody else can have written it.
"""

from __future__ import annotations

import hashlib
import pickle
from io import BytesIO
from types import ModuleType
from typing import IO, Any

from .errors import RefusedError

_digests: set[bytes] = set()


def note(data: bytes) -> None:
    """Remember a pickle that is about to be written."""
    _digests.add(hashlib.sha256(data).digest())


def is_own(data: bytes) -> bool:
    """Whether this process has written exactly this pickle."""
    return hashlib.sha256(data).digest() in _digests


class _Unpickler(pickle.Unpickler):
    """Python's own, for nothing but what this process has written."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        data = file.read()
        if not is_own(data):
            raise RefusedError("another pickle than a moment ago")
        super().__init__(BytesIO(data), **options)


PICKLE_MODULE = ModuleType("_own_pickle", "The pickle module, for what this process has written.")
PICKLE_MODULE.__dict__.update(vars(pickle), __name__="_own_pickle", Unpickler=_Unpickler)
