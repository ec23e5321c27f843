"""When a patch is applied: right after the module that it changes has been imported.

`activate` puts a finder on `sys.meta_path` that knows those modules by name, and lets whoever
imports them first run as always; then the fresh module is patched. The order of imports is thus
free, Lightning is never imported on our account, and `import torch` stays fast. The patches find
our classes by name, when somebody asks for an HPU: until then none of them is imported.
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
"""Names the module of a tool that is to look on, whose `install()` is called."""
_TOOLS = "lightning_gaudi.tools."
_PARENT = "_LIGHTNING_GAUDI_PARENT"  # see `_core.processes`


def activate() -> None:
    """Patches Lightning now or when it is imported, and starts the simulator if it is asked for.

    Doing it again is harmless.

    Raises:
        Exception: What kept the simulator from starting, where the environment asks for it.
    """
    mirror.install()
    if os.environ.get(_PARENT):
        from lightning_gaudi._core import processes

        processes.watch_parent()
    if not any(isinstance(finder, _PostImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportFinder())
    # Before torch is there, its entry point will call us; the finder serves the cases without one.
    for name in ("torch", *_TRIGGERS):
        if _is_imported(name):
            _after_import(sys.modules[name])


def _triggers(patches: Iterable[Patch]) -> dict[str, list[tuple[Patch, mirror.Family]]]:
    """Names of the modules to patch -> their patches, and the family that each belongs to."""
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
    """Enters the patches of a tool in the register.

    Each is applied when its module is imported; now if it has been.
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
    # torch calls its entry points when it is complete, but still being imported.
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
    """Finds what the other finders find, and has our modules call back after they have run."""

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
    """A module's own loader, and a call when the module has run; it leaves no trace of itself."""

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
