"""Imports a module of ours right after one of torch's is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def call_after(module: str, follower: str) -> None:
    """Imports `follower`, whose import registers something, as soon as `module` is imported.

    Args:
        module: A module that may be imported already.
        follower: The module to import next.
    """
    if module in sys.modules:
        importlib.import_module(follower)
    else:
        sys.meta_path.insert(0, _Finder(module, follower))


class _Finder:
    """A finder that finds one module as Python would, and has another imported after it."""

    def __init__(self, module: str, follower: str) -> None:
        self._module = module
        self._follower = follower

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute, follower = spec.loader.exec_module, self._follower

            def exec_module(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(follower)

            spec.loader.exec_module = exec_module
        return spec
