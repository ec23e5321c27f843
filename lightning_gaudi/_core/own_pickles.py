"""Remembers the pickles that this process has written and may therefore load again.

Lightning's Tuner, `validate(ckpt_path="best")` and the like load what the same process has saved a
moment before, possibly with a class of the user's in its hyperparameters. A pickle is recognized by
the SHA-256 of all its bytes, so no other file can pass for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_digests: set[bytes] = set()
_told: set[str] = set()


def note(data: bytes) -> None:
    """Remembers a pickle that is about to be written."""
    _digests.add(hashlib.sha256(data).digest())


def is_own(data: bytes) -> bool:
    """Returns whether this process has written exactly this pickle."""
    return hashlib.sha256(data).digest() in _digests


def not_yet_told(names: Iterable[str]) -> list[str]:
    """Returns those names of which this process has not warned yet; the caller does so now."""
    new = sorted({*names} - _told)
    _told.update(new)
    return new
