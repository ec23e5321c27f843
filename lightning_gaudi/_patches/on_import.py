"""Applies each patch right after the module that it changes was imported.

`activate` puts a finder on `sys.meta_path` that knows those modules by name. Their import runs as
usual, and then the fresh module is patched. So the order of imports does not matter, Lightning is
never imported on our account, and `import torch` stays fast. The patches import our classes by name
when somebody asks for an HPU, and not before.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from lightning_gaudi._core import mirror

from . import register
from .register import Patch

_SIMULATE = "LIGHTNING_GAUDI_SIMULATE"
TOOL = "_LIGHTNING_GAUDI_TOOL"
"""The variable with the module of a tool that observes the program, whose `install()` is called."""
_TOOLS = "lightning_gaudi.tools."
_PARENT = "_LIGHTNING_GAUDI_PARENT"  # see `_core.processes`


def activate() -> None:
    """Patches Lightning now or at its import, and starts the simulator if it is asked for.

    Doing it again is harmless.

    Raises:
        Exception: The simulator, which the environment asks for, cannot start.
    """
    mirror.install()
    if os.environ.get(_PARENT):
        from lightning_gaudi._core import processes

        processes.watch_parent()
    if not any(isinstance(finder, _PostImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportFinder())
    # If torch is not imported yet, its entry point (`torch.backends`) calls this function then. The
    # finder serves programs in which that is switched off.
    for name in ("torch", *_TRIGGERS):
        if _is_imported(name):
            _after_import(sys.modules[name])


def _triggers(patches: Iterable[Patch]) -> dict[str, list[tuple[Patch, mirror.Family]]]:
    """Returns the patches of each module name, with the family that each belongs to."""
    found: dict[str, list[tuple[Patch, mirror.Family]]] = {}
    for patch in patches:
        if not patch.trigger:
            continue
        names = {
            patch.trigger.format(trainer=family.trainer, fabric=family.fabric): family
            for family in reversed(mirror.FAMILIES)
        }
        for name, family in names.items():
            found.setdefault(name, []).append((patch, family))
    return found


_TRIGGERS = _triggers(register.REGISTER)


def _start_simulator_if_asked() -> None:
    if os.environ.get(_SIMULATE):
        from lightning_gaudi import simulator

        simulator.activate()
        _install_tool_if_asked()


def _install_tool_if_asked() -> None:
    name = os.environ.get(TOOL, "")
    if name.startswith(_TOOLS):
        importlib.import_module(name).install()


def add(patches: Iterable[Patch]) -> None:
    """Enters the patches of a tool in the register, and applies them.

    A patch is applied at once if its module has been imported, and otherwise at its import.
    """
    register.add(patches)
    for name, found in _triggers(patches).items():
        known = _TRIGGERS.setdefault(name, [])
        known.extend(each for each in found if each not in known)
        if _is_imported(name):
            _after_import(sys.modules[name])


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    # torch calls its entry points at the end of its own import, when it is complete.
    is_complete = name == "torch" and hasattr(module, "_import_device_backends")
    return is_complete or not getattr(module.__spec__, "_initializing", False)


def _after_import(module: ModuleType) -> None:
    if module.__name__ == "torch":
        _start_simulator_if_asked()
        return
    from .apply import apply

    for patch, family in _TRIGGERS[module.__name__]:
        apply(patch, module, family)


class _PostImportFinder(MetaPathFinder):
    """Wraps the loaders of modules to patch, so that they call back after the module has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch" and fullname not in _TRIGGERS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PostImportLoader(spec.loader, _after_import)
                return spec
        return None


class _PostImportLoader(Loader):
    """Runs a module's own loader and then a callback, and leaves the original loader behind."""

    def __init__(self, loader: Any, after: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
