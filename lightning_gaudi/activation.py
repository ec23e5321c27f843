"""When Lightning is patched: right after each of a few of its modules has been imported.

`activate` puts a finder on `sys.meta_path` that knows those modules by name, and lets whoever
imports them first run as always; then it hands the fresh module to our patch. The order of imports
is thus free, Lightning is never imported on our account, and `import torch` stays fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from lightning_gaudi._core import mirror

_SIMULATE = "LIGHTNING_GAUDI_SIMULATE"
_PARENT = "_LIGHTNING_GAUDI_PARENT"  # see `processes`

# Module below Lightning's package of the Trainer, or of Fabric -> our module, our function.
_TRAINER_PATCHES = {
    "trainer.connectors.accelerator_connector": ("connectors", "patch_connector"),
    "_graveyard.hpu": ("connectors", "patch_graveyard"),
}
_FABRIC_PATCHES = {
    "connector": ("fabric.connector", "patch_connector"),
    "cli": ("fabric.cli", "patch_cli"),
}

# The compiler that `torch.compile` uses by default: see `compile`.
_INDUCTOR = "torch._inductor.compile_fx"

# DeepSpeed's accelerator, which changes torch for the whole process: see `deepspeed_import`.
_DEEPSPEED = "deepspeed.accelerator.hpu_accelerator"

# Modules that have been imported but not patched yet.
_waiting: list[ModuleType] = []

# Our packages that failed to patch one, and were warned of.
_broken: set[str] = set()


def activate() -> None:
    """Patch Lightning now or when it is imported, and start the simulator if it is asked for.

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
    if _is_imported("torch"):
        _start_simulator_if_asked()
    for name in _targets():
        if _is_imported(name):
            _after_import(sys.modules[name])


def _targets() -> dict[str, tuple[str, str, str]]:
    """Names of the modules to patch -> our package of the same family, module, function."""
    return {
        _INDUCTOR: (mirror.LIGHTNING.ours, "_patches.torch_compile", "patch_inductor"),
        _DEEPSPEED: (mirror.LIGHTNING.ours, "_patches.deepspeed", "patch_accelerator"),
    } | {
        f"{package}.{module}": (family.ours, ours, function)
        for family in mirror.FAMILIES
        for package, patches in (
            (family.trainer, _TRAINER_PATCHES),
            (family.fabric, _FABRIC_PATCHES),
        )
        for module, (ours, function) in patches.items()
    }


def _start_simulator_if_asked() -> None:
    if os.environ.get(_SIMULATE):
        from lightning_gaudi import simulator

        simulator.activate()


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    # torch calls its entry points when it is complete, but still being imported.
    is_complete = name == "torch" and hasattr(module, "_import_device_backends")
    return is_complete or not _is_running(module)


def _is_running(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _after_import(module: ModuleType) -> None:
    if module.__name__ == "torch":
        _start_simulator_if_asked()
        return
    if module.__name__ in _targets():
        _waiting.append(module)
    _patch_waiting(finished=module.__name__)


def _patch_waiting(finished: str) -> None:
    """Patch what has been imported, unless a module of ours that we need is only half there.

    That is so while one of ours is what imports Lightning; it calls again when it has `finished`.
    """
    for module in list(_waiting):
        ours, *_ = _targets()[module.__name__]
        needed = {f"{ours}.{name}" for name in mirror.MIRRORED} - {finished}
        if all(name not in sys.modules or _is_imported(name) for name in needed):
            _waiting.remove(module)
            _patch(module)


def _patch(module: ModuleType) -> None:
    """Patch `module`; what is broken of ours is one warning, unless the run is to be simulated."""
    package, name, function = _targets()[module.__name__]
    if package in _broken:
        return
    try:
        getattr(importlib.import_module(f"{package}.{name}"), function)(module)
    except Exception as error:
        if os.environ.get(_SIMULATE):
            raise
        _broken.add(package)
        warnings.warn(
            f"lightning_gaudi could not extend {module.__name__}, so accelerator='hpu' will not "
            f"work: {type(error).__name__}: {error}. Upgrade lightning-gaudi to a release for what "
            "is installed.",
            RuntimeWarning,
            stacklevel=2,
        )


class _PostImportFinder(MetaPathFinder):
    """Finds what the other finders find, and has our modules call back after they have run."""

    def __init__(self) -> None:
        ours = {f"{family.ours}.{name}" for family in mirror.FAMILIES for name in mirror.MIRRORED}
        self._names = {"torch", *_targets(), *ours}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
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
