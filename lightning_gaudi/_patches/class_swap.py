"""An object of a class of Lightning's turned into the same object of our subclass of it."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

_Object = TypeVar("_Object")


def swap_class(instance: _Object, base: type, ours: type) -> _Object:
    """Turns `instance` into one of `ours`; its attributes, and whoever holds it, stay.

    A user's subclass of `base` becomes a class that overrides as it did, with `ours` where `base`
    was: its `super()` calls arrive there.

    Args:
        instance: An instance of `base` or of a subclass of it.
        base: A class of Lightning's.
        ours: Our subclass of it.

    Returns:
        `instance`.
    """
    kind: Any = type(instance)
    if not issubclass(kind, ours):
        instance.__class__ = ours if kind is base else _joined(kind, ours)
    return instance


@cache
def _joined(theirs: type, ours: type) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        # A class made here cannot be found by name when `ddp_spawn` pickles the strategy.
        state = self.__getstate__() if hasattr(self, "__getstate__") else vars(self)
        return _restore, (theirs, ours), state

    return type(
        f"HPU{theirs.__name__}",
        (theirs, ours),
        {
            "__doc__": theirs.__doc__,
            "__module__": theirs.__module__,
            "__reduce_ex__": reduce_ex,
        },
    )


def _restore(theirs: type, ours: type) -> Any:
    return object.__new__(_joined(theirs, ours))
