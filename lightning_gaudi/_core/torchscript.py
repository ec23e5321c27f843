"""Keeps `torch.load` from running a program of TorchScript, which runs whatever it is given.

`torch.load` hands an archive that has a record `constants.pkl` to `torch.jit.load`, unless it was
called with `weights_only=True` (torch 2.6 to 2.13, `serialization.py`). A program of TorchScript
reads and writes files as it is loaded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_num_blocks = 0
_original: Any = None
_here = threading.local()


@contextmanager
def unreachable(refusal: Exception) -> Iterator[None]:
    """Has `torch.jit.load` refuse within the block; in other threads it does what it did.

    Args:
        refusal: What it raises.
    """
    _enter()
    before = getattr(_here, "refusal", None)
    _here.refusal = refusal
    try:
        yield
    finally:
        _here.refusal = before
        _leave()


def _enter() -> None:
    global _num_blocks, _original
    with _lock:
        _num_blocks += 1
        if _num_blocks == 1:
            _original, torch.jit.load = torch.jit.load, _refusing(torch.jit.load)


def _leave() -> None:
    global _num_blocks, _original
    with _lock:
        _num_blocks -= 1
        if _num_blocks == 0:
            _original, torch.jit.load = None, _original


def _refusing(original: Any) -> Any:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        if (refusal := getattr(_here, "refusal", None)) is not None:
            raise refusal
        return original(*args, **kwargs)

    return load
