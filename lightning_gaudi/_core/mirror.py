"""Serves one source for two families of classes, `lightning` and `pytorch_lightning`.

Lightning is published under two names with disjoint class trees. Ours are written once, against
`lightning.pytorch` and `lightning.fabric`. Importing `lightning_gaudi.pytorch_lightning` and what
is below it serves the same files a second time with these two names replaced, as Lightning itself
does when it is built. The classes have importable names, so they pickle and stand in YAML as
`class_path: lightning_gaudi.pytorch_lightning.HPUAccelerator`.

The rule for rooms: all are mirrored but those whose names begin with an underscore and those of
`SHARED`, which know nothing of Lightning's classes, and which a process has once.
The rule for the sources: a relative import stays in the family (`from .precision import ...`); an
absolute one leaves it (`from lightning_gaudi._core import vendor`) and is shared by both.

`lazy_names` gives a package names that are imported when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

_PACKAGE = "lightning_gaudi"
_MIRROR = f"{_PACKAGE}.pytorch_lightning"
SHARED = (
    *("attention", "compilation", "config_errors", "data", "hardware", "inference", "published"),
    *("releases", "reliability", "report", "simulator", "strategy_table", "tools", "untrusted"),
)
"""The modules and packages at our top that exist once, beside those that begin with `_`."""


class Family(NamedTuple):
    """One of the names under which Lightning is published."""

    ours: str
    """Our package that holds the family's classes."""
    trainer: str
    """Lightning's package that holds the Trainer."""
    fabric: str
    """Lightning's package that holds Fabric."""

    def find(self, below: str) -> Any:
        """Imports one of our mirrored modules, such as `"strategies.ddp"`, for this family."""
        return importlib.import_module(f"{self.ours}.{below}")

    def loaded(self, below: str, name: str) -> Any:
        """Returns a name of one of our mirrored modules, or None if that has not been imported yet.

        What nobody has imported has no instances: a check for them need not import it.
        """
        return getattr(sys.modules.get(f"{self.ours}.{below}"), name, None)


LIGHTNING = Family(_PACKAGE, "lightning.pytorch", "lightning.fabric")
PYTORCH_LIGHTNING = Family(_MIRROR, "pytorch_lightning", "lightning_fabric")
FAMILIES = (LIGHTNING, PYTORCH_LIGHTNING)

# Old and new names have the same length, so that the columns in tracebacks stay true.
_RENAMES = (("lightning.pytorch", "pytorch_lightning"), ("lightning.fabric", "lightning_fabric"))


def family_of(module: object) -> Family | None:
    """Returns the family whose LightningModule an object is, or None; it imports neither."""
    for family in FAMILIES:
        kind = getattr(sys.modules.get(family.trainer), "LightningModule", None)
        if kind is not None and isinstance(module, kind):
            return family
    return None


def is_mirrored(room: str) -> bool:
    """Returns whether a module or package at our top exists once for each family."""
    return not room.startswith("_") and room not in SHARED


def install() -> None:
    """Makes the mirror importable; doing it again is harmless."""
    # First, since Python's own finder would otherwise load the files without the replacement.
    if not any(isinstance(finder, _MirrorFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MirrorFinder())


def translate(source: str) -> str:
    """Returns the source of a module of ours, rewritten for `pytorch_lightning`."""
    for old, new in _RENAMES:
        source = source.replace(old, new)
    return source


class _MirrorFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MIRROR and not fullname.startswith(f"{_MIRROR}."):
            return None
        below = fullname[len(_MIRROR) + 1 :]
        if below and not is_mirrored(below.split(".")[0]):
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {_PACKAGE}.{below} is the same for lightning and "
                f"pytorch_lightning. Import {_PACKAGE}.{below}.",
                name=fullname,
            )
        # The file is found beside the original's, without importing that or its parents.
        if below:
            spec = PathFinder.find_spec(fullname, path)
        else:
            spec = importlib.util.spec_from_file_location(fullname, sys.modules[_PACKAGE].__file__)
        if spec is not None and spec.origin is not None:
            spec.loader = _MirrorLoader(fullname, spec.origin)
        return spec


class _MirrorLoader(SourceFileLoader):
    """Runs a file of ours under its mirror name; tracebacks and `inspect` show the real file."""

    def get_code(self, fullname: str) -> CodeType:
        # The base class's method would share the bytecode cache with the original module.
        path = self.get_filename(fullname)
        source = translate(importlib.util.decode_source(self.get_data(path)))
        return compile(source, path, "exec", dont_inherit=True)


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package (PEP 562).

    Args:
        package: Its `__name__`.
        homes: Each of its names, and the module that has it: relative to the package, or absolute.
            A name of a module itself stands with the module's own address.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Kept in the package, so that the next access does not come here.
        module = importlib.import_module(homes[name], package)
        found = module if module.__name__.endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, listed, sorted(homes)
