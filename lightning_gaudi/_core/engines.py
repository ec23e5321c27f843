"""Remembers the last DeepSpeed engine of each model in this process."""

from __future__ import annotations

import weakref
from typing import Any

from torch.nn import Module

_engines: weakref.WeakKeyDictionary[Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()

gathered_as_one: weakref.WeakSet[Module] = weakref.WeakSet()
"""The modules whose weights ZeRO-3 gathers together since they are compiled, and not because their
user has made them its leaves."""


def note(model: Module, engine: Any) -> None:
    """Remembers the engine of a model, without keeping either alive."""
    _engines[model] = weakref.ref(engine)


def take(model: Module) -> Any:
    """Returns the last engine of a model if it is still alive, and forgets it."""
    return _engines.pop(model, lambda: None)()
