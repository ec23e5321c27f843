"""Gives modules of the stand-in, which are named as Python names modules, the vendor's names."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from ._missing import load


def alias_modules(package: str, **names: str) -> None:
    """Lets `import package.Theirs` find `package.ours`.

    A module that is not loaded yet is loaded when a name of it is asked for.

    Args:
        package: The package's `__name__`.
        names: For each module its name in the vendor's package, and the one it has here.
    """
    for theirs, ours in names.items():
        found = sys.modules.get(f"{package}.{ours}") or _Late(package, theirs, ours)
        sys.modules[f"{package}.{theirs}"] = found


class _Late(ModuleType):
    """Stands for another module, and loads it when somebody asks for a name."""

    def __init__(self, package: str, theirs: str, ours: str) -> None:
        super().__init__(f"{package}.{theirs}")
        self._package, self._ours = package, ours
        spec = importlib.util.find_spec(f"{package}.{ours}")
        assert spec is not None
        self.__file__ = spec.origin

    def __getattr__(self, name: str) -> Any:
        # Tools that look at all of `sys.modules`, as `inspect` does, ask for such names: they must
        # not load everything.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(load(self._package, self._ours), name)
