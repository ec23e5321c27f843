"""Finds what a program has changed outside of its own module, and sets it in workers.

A fork would hand over all of it: operators that the program has registered, functions that it has
put into other modules, and flags and tables that it has set there. Workers that are not forked get
it from here.

It covers custom operators and functions that the program itself defines, the numbers, texts and
plain containers of the user's own modules, and the constants (names in capitals) of installed
packages.
"""

from __future__ import annotations

import contextlib
import functools
import re
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import torch

PROGRAM = ("__main__", "__mp_main__")
"""The names of the program's module; the second is its name in a spawned process."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MAX_ITEMS = 1000
_MAX_DEPTH = 3
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
_ABSENT = object()
_NOT_SENT = (
    *("lightning_gaudi", "habana_frameworks", "torch", "numpy", "lightning", "cloudpickle"),
    *("pytorch_lightning", "lightning_fabric", "multiprocessing", "_pytest", "pytest"),
)
"""Packages whose constants depend on the machine or the process, and are left to themselves."""


_kept: list[Any] = []
"""Registered operators, held here since torch refers to them weakly."""


class Operators:
    """The custom operators of the program, which are registered again when this is unpickled."""

    def __init__(self) -> None:
        from torch._library.custom_ops import OPDEFS

        self.found = [
            (each._qualname, each._schema, each._init_fn)
            for each in OPDEFS.values()
            if each._init_fn.__module__ in PROGRAM
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return _register, (self.found,)


def _register(found: list[tuple[str, str, Any]]) -> None:
    from torch._library.custom_ops import OPDEFS

    for name, schema, function in found:
        if name in OPDEFS:
            continue
        described = torch._C.parse_schema(f"{name}{schema}")
        written = [a.name for a in described.arguments if a.alias_info and a.alias_info.is_write]
        _kept.append(torch.library.custom_op(name, function, mutates_args=written, schema=schema))


def operator_named(name: str) -> Any:
    """Returns the definition of a custom operator: what `torch.library.custom_op` returned."""
    from torch._library.custom_ops import OPDEFS

    return OPDEFS[name]


def patches() -> list[tuple[str, str, str, Any]]:
    """Returns functions and classes of the program that it has put into other modules.

    Returns:
        For each the module, the class in it or "", the name, and the function or class.
    """
    found = []
    for name, module in _modules():
        for attribute, value in list(vars(module).items()):
            if _is_program_s(value):
                found.append((name, "", attribute, value))
            elif _is_class(value) and value.__module__ == name:
                methods = list(vars(value).items())
                found += [
                    (name, value.__qualname__, inner, each)
                    for inner, each in methods
                    if _is_program_s(each)
                ]
    return found


def _is_class(value: Any) -> bool:
    """Returns whether a value is a class, by its type alone, since objects may raise if asked."""
    return issubclass(type(value), type)


def _is_program_s(value: Any) -> bool:
    """Returns whether a value is a class, function or method that the program defines."""
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    is_defined = type(value) is types.FunctionType or _is_class(value)
    return is_defined and value.__module__ in PROGRAM


def values() -> dict[str, dict[str, Any]]:
    """Returns plain globals: all of the user's own modules, and constants of other modules.

    Returns:
        By module, then by name; "Class.name" for an attribute of a class in it.
    """
    found = {}
    for name, module in _modules():
        if name.partition(".")[0] in _NOT_SENT or name.partition(".")[0] in sys.stdlib_module_names:
            continue
        is_own = _is_own(getattr(module, "__file__", None))
        plain = {
            attribute: value
            for attribute, value in list(vars(module).items())
            if (is_own or _CONSTANT.fullmatch(attribute)) and _is_sent(attribute, value, is_own)
        }
        for each in list(vars(module).values()) if is_own else ():
            if _is_class(each) and each.__module__ == name:
                plain |= {
                    f"{each.__qualname__}.{attribute}": value
                    for attribute, value in list(vars(each).items())
                    if _is_sent(attribute, value, is_own)
                }
        if plain:
            found[name] = plain
    return found


def _is_sent(name: str, value: Any, is_own: bool) -> bool:
    return not name.startswith("__") and _is_plain(value, _MAX_DEPTH if is_own else 0)


def put(changed: list[tuple[str, str, str, Any]], plain: dict[str, dict[str, Any]]) -> None:
    """Applies changes to the modules of this process.

    Args:
        changed: What `patches` returned.
        plain: What `values` returned. Modules that this process has not imported are left.
    """
    for name, values_of in plain.items():
        for path, value in values_of.items():
            owner, _, attribute = path.rpartition(".")
            if (target := _find(name, owner)) is not None:
                with contextlib.suppress(AttributeError, TypeError):  # a class may forbid it
                    _set(target, attribute, value)
    for name, owner, attribute, function in changed:
        if (target := _find(name, owner)) is not None:
            setattr(target, attribute, function)


def _find(module: str, path: str) -> Any:
    """Returns a module that this process has, or a class in it; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    return found


def _set(owner: Any, attribute: str, value: Any) -> None:
    """Sets an attribute; a container is kept and filled, since others may refer to it."""
    before = vars(owner).get(attribute, _ABSENT)
    if type(before) is type(value) and before == value:
        return
    if type(before) is type(value) and isinstance(value, (dict, set)):
        before.clear()
        before.update(value)
    elif type(before) is type(value) and isinstance(value, list):
        before[:] = value
    else:
        setattr(owner, attribute, value)


def _modules() -> Iterator[tuple[str, types.ModuleType]]:
    for name, module in list(sys.modules.items()):
        if name not in PROGRAM and type(module) is types.ModuleType:
            yield name, module


@functools.cache
def _is_own(file: str | None) -> bool:
    """Returns whether a module is the user's own: neither installed nor Python's."""
    return file is not None and not file.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple(f"{path}/" for path in paths if path)


def _is_plain(value: Any, depth: int) -> bool:
    if type(value) in _PLAIN:
        return True
    if not depth or type(value) not in (list, tuple, dict, set) or len(value) > _MAX_ITEMS:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(each, depth - 1) for each in items)
