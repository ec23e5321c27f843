"""Which of DeepSpeed's engines each model of this process went through last."""

from __future__ import annotations

import weakref
from typing import Any

from torch.nn import Module

_engines: weakref.WeakKeyDictionary[Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def note(model: Module, engine: Any) -> None:
    """Remembers the engine that a model goes through; neither is kept alive."""
    _engines[model] = weakref.ref(engine)


def take(model: Module) -> Any:
    """Returns the engine that a model went through last, if it still is there; it is forgotten."""
    return _engines.pop(model, lambda: None)()
