"""The names that Lightning had for HPU classes until 2.5.5, and has stubs of since."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import find_when_asked
from .register import STUBS

_HOMES = {
    "HPUAccelerator": "accelerator",
    "HPUCheckpointIO": "checkpoint",
    "HPUParallelStrategy": "strategies",
    "HPUPrecisionPlugin": "precision",
    "SingleHPUStrategy": "strategies",
}
"""Each of them, and our room that has it."""


def patch_stubs(graveyard: ModuleType, family: Family) -> None:
    """Lets our classes be found where Lightning left stubs for them, when somebody asks.

    Args:
        graveyard: The module with the stubs, the last one that Lightning imports.
        family: Lightning's and ours.
    """
    for place, names in _places(graveyard, family):
        homes = {name: f"{family.ours}.{_HOMES[name]}" for name in names}
        find_when_asked("old-names", place, homes)


def _places(graveyard: ModuleType, family: Family) -> Iterator[tuple[Any, list[str]]]:
    """Yields the modules that have stubs, and their names."""
    packages = {package for packages in STUBS.values() for package in packages}
    stubs = {name: vars(graveyard)[name] for name in STUBS if name in vars(graveyard)}
    for place in (graveyard, *(importlib.import_module(f"{family.trainer}.{p}") for p in packages)):
        names = [name for name, stub in stubs.items() if vars(place).get(name) is stub]
        if names:
            yield place, names
