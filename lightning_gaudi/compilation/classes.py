"""Whether the classes of modules still have the methods that were compiled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any

from torch.nn import Module

_METHODS = (FunctionType, staticmethod, classmethod, property)


class Classes:
    """The classes of a module and of the modules in it, and their methods as they are now.

    torch's compiler takes it that methods stay (2.13): nothing that it looks at before it takes a
    graph tells that a class was given another one.

    Args:
        root: The module.
    """

    def __init__(self, root: Module) -> None:
        kinds = {kind for module in root.modules() for kind in type(module).__mro__}
        self._members = [vars(kind).values() for kind in kinds.difference(Module.__mro__)]
        self._before: list[Any] = [*chain.from_iterable(self._members)]

    def have_changed(self) -> bool:
        """Returns whether one has another method than when this was last asked."""
        # In each call of a compiled module: some 30 ns a method, in one go.
        if sum(map(len, self._members)) == len(self._before) and all(
            map(is_, chain.from_iterable(self._members), self._before)
        ):
            return False
        before, self._before = self._before, [*chain.from_iterable(self._members)]
        return _methods(before) != _methods(self._before)


def _methods(members: Sequence[Any]) -> list[int]:
    return [id(member) for member in members if isinstance(member, _METHODS)]
