"""Refuses, in one way, what the simulated HPU does not offer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

from lightning_gaudi.simulator import vendor_names

from ._reasons import reason_for
from ._release import is_lazy, release

README = "lightning_gaudi/simulator/README.md"


class NotSimulatedError(NotImplementedError, AttributeError):
    """The error for something of the vendor's package that the stand-in lacks.

    It is an AttributeError too, so that `hasattr` keeps detecting features.
    """


def not_simulated(what: str, why: str = "") -> NotSimulatedError:
    """Returns the error for something that a Gaudi may have and the simulated HPU has not.

    Args:
        what: Its dotted name, or the call with its argument.
        why: Why, or what to use in its place, as sentences.
    """
    said = f" {why}" if why else ""
    return NotSimulatedError(
        f"{what} is not available on the simulated HPU.{said} "
        f"What is simulated, and what is not, is listed in {README}."
    )


def refused(name: str, reason: str, kind: str = "function") -> Any:
    """Returns a function or class for a name that cannot work here; calling it raises.

    Args:
        name: The dotted name.
        reason: Why it cannot, as a sentence.
        kind: "class" if the vendor's is one, so that `isinstance` and type hints can use it.
    """

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise not_simulated(name, reason)

    short = name.rpartition(".")[2]
    if kind == "class":
        return type(short, (), {"__new__": refuse, "__doc__": reason, "__refused__": reason})
    refuse.__name__ = refuse.__qualname__ = short
    refuse.__doc__ = refuse.__refused__ = reason  # type: ignore[attr-defined]
    return refuse


_late: dict[str, dict[str, str]] = {}
"""By module, the names that are loaded when they are asked for, and the modules that have them."""


def has(module: ModuleType, name: str) -> bool:
    """Returns whether a module has a name of the vendor's, loaded or not yet."""
    return name in vars(module) or name in _late.get(module.__name__, {})


def load(module: str, home: str) -> ModuleType:
    """Loads a module below another one, which gets those of its names that have waited for it.

    Args:
        module: The module's `__name__`.
        home: The name of the one below.
    """
    found = importlib.import_module(f"{module}.{home}")
    # All names of the module at once: a function may have the module's own name, and the import has
    # just put the module in its place.
    for name, other in _late[module].items():
        if other == home:
            setattr(sys.modules[module], name, getattr(found, name))
    return found


def missing(module: str, late: Mapping[str, tuple[str, ...]] | None = None) -> Callable[[str], Any]:
    """Builds a module's `__getattr__`, for the names that the module does not define.

    A name that the vendor's release has is there and refuses to be called; one that it has not
    raises. Names that the module defines only for other releases are taken out of it. So this has
    to come last in a module.

    Args:
        module: The module's `__name__`.
        late: Modules below it that are loaded when one of their names is asked for.
    """
    listed = vendor_names.find_module(module)
    names = {} if listed is None else listed.names
    others = [name for name, entry in names.items() if not _is_offered(entry)]
    _hide(module, others)
    homes = {name: home for home, mine in (late or {}).items() for name in mine}
    waiting = _late[module] = {name: homes[name] for name in homes if name not in others}

    def __getattr__(name: str) -> Any:  # noqa: N807 (assigned to a module)
        if name in waiting:
            load(module, waiting[name])
            return vars(sys.modules[module])[name]
        entry, full_name = names.get(name), f"{module}.{name}"
        if entry is not None and _is_offered(entry):
            if entry.kind == "value":
                raise not_simulated(full_name, reason_for(full_name))
            return refused(full_name, reason_for(full_name), entry.kind)
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        child = vendor_names.find_module(full_name)
        if child is not None and child.is_in(release()):
            return importlib.import_module(full_name)
        raise not_simulated(full_name, f"Gaudi's package {release().version} has no such name.")

    return __getattr__


def _is_offered(entry: vendor_names.Name) -> bool:
    return entry.is_in(release(), is_lazy=is_lazy())


_waiting: dict[str, list[str]] | None = {}
"""Names to take out of modules once the package is imported; None from then on.

They stay until then, because the modules import such names from each other.
"""


def hide_other_releases() -> None:
    """Takes the waiting names out of their modules, when the package has been imported."""
    global _waiting
    waiting, _waiting = _waiting or {}, None
    for module, names in waiting.items():
        _hide(module, names)


def _hide(module: str, names: list[str]) -> None:
    if _waiting is not None:
        _waiting[module] = names
        return
    space = vars(sys.modules[module])
    for name in names:
        space.pop(name, None)
    if "__all__" in space:
        space["__all__"] = [name for name in space["__all__"] if name not in names]
