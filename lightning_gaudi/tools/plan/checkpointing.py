"""Activations that are computed again in backward, in models that can be told to do so."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_ENABLE = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
_DISABLE = ("activation_checkpointing_disable", "gradient_checkpointing_disable")


def set_checkpointing(model: Any, *, is_on: bool) -> None:
    """Makes modules of transformers compute activations again in backward, or not."""
    for module in model.modules():
        for name in _ENABLE if is_on else _DISABLE:
            # Of the class: a module's `__getattr__` may raise, or ask the module that it wraps.
            if hasattr(type(module), name):
                with suppress(ValueError):  # of a model that cannot
                    getattr(module, name)()
                break


def can_checkpoint(model: Any) -> bool:
    """Returns whether a module of a model can."""
    return any(
        any(hasattr(kind, name) for name in _ENABLE)
        and getattr(kind, "supports_gradient_checkpointing", True)  # of transformers
        for kind in map(type, model.modules())
    )
