"""Walks through containers and objects from which a captured forward may read."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

SCALARS = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.UserDict)
_MAX_LEAVES = 4096
"""The number of leaves that are looked at, because an object may hold the whole program."""
_MAX_DEPTH = 8
_NO_STATE = (
    *(type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.Generator, functools.partial),
)


def print_of(value: Any) -> Any:
    """Returns a print of a value, by which it can be compared later; None if it has none."""
    if isinstance(value, torch.Tensor):
        is_plain = type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        # A DTensor and the like have no memory of their own.
        return ("tensor", value.data_ptr() if is_plain else id(value))
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, (list, dict, set, collections.deque)):
        return (type(value).__name__, len(value))
    return None


def leaves_of(label: str, value: Any) -> dict[str, Any]:
    """Returns the prints of a value's tensors on the card, scalars and lengths, by path.

    Args:
        label: The name that a user would give the value.
        value: A container, or an object with attributes.
    """
    found: dict[str, Any] = {}
    for path, leaf in _walk(label, value, set(), 0):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "hpu":
            continue
        found[path] = print_of(leaf)
        if len(found) == _MAX_LEAVES:
            break
    return found


def leaves_of_arguments(inputs: Any) -> dict[str, Any]:
    """Returns the leaves of objects among arguments, whose tensors a replay does not copy.

    Args:
        inputs: The arguments of a captured forward.
    """
    found: dict[str, Any] = {}
    objects = (each for each in _objects(inputs) if not isinstance(each, torch.nn.Module))
    for number, value in enumerate(objects):
        name = type(value).__name__
        found |= leaves_of(f"{name} {number + 1}" if number else name, value)
    return found


def modules_of(inputs: Any) -> list[torch.nn.Module]:
    """Returns the modules among arguments."""
    return [each for each in _objects(inputs) if isinstance(each, torch.nn.Module)]


def _objects(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, dict):
        yield from _objects(list(inputs.values()))
    elif isinstance(inputs, (list, tuple)):
        for value in inputs:
            yield from _objects(value)
    elif is_dataclass(inputs) and not isinstance(inputs, type):
        yield from _objects([getattr(inputs, field.name) for field in fields(inputs)])
    elif not isinstance(inputs, (torch.Tensor, *SCALARS, *_NO_STATE)):
        yield inputs


def _walk(path: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (torch.Tensor, *SCALARS)):
        yield path, value
        return
    if isinstance(value, _NO_STATE) or depth > _MAX_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, CONTAINERS):
        if isinstance(value, (list, dict, set, collections.deque)):
            yield f"len({path})", len(value)
        for key, each in _items(value):
            yield from _walk(f"{path}[{key!r}]", each, seen, depth + 1)
        return
    for name, each in list(getattr(value, "__dict__", {}).items()):
        yield from _walk(f"{path}.{name}", each, seen, depth + 1)
    for name in _slots_of(type(value)):
        if hasattr(value, name):
            yield from _walk(f"{path}.{name}", getattr(value, name), seen, depth + 1)


def _items(container: Any) -> list[tuple[Any, Any]]:
    if isinstance(container, (set, frozenset)):
        # A set has no order, so only names and numbers in it can be compared.
        return [(each, each) for each in container if isinstance(each, SCALARS)]
    if isinstance(container, Mapping):
        return [(k, v) for k, v in container.items() if isinstance(k, SCALARS)]
    return list(enumerate(container))


@functools.cache
def _slots_of(kind: type) -> tuple[str, ...]:
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    return tuple(name for name in names if not name.startswith("__"))


@functools.cache
def names_of_forward(kind: type) -> frozenset[str]:
    """Returns the names in a module's `forward`, and in the methods of its class that it calls."""
    names: set[str] = set()
    todo = ["forward"]
    while todo:
        for name in _names_in(kind, todo.pop()) - names:
            names.add(name)
            todo.append(name)
    return frozenset(names)


def _names_in(kind: type, name: str) -> set[str]:
    found: set[str] = set()
    for base in kind.__mro__:
        if base in (torch.nn.Module, object) or name not in vars(base):
            continue
        method = vars(base)[name]
        for part in (method, *(getattr(method, each, None) for each in ("fget", "func"))):
            # A static method, or one of the class, has its function in `__func__`.
            part = getattr(part, "__func__", part)
            code = getattr(part, "__code__", None)
            while code is None and hasattr(part, "__wrapped__"):
                part = part.__wrapped__
                code = getattr(part, "__code__", None)
            if code is not None:
                found.update(_names_of_code(code))
    return found


def _names_of_code(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names_of_code, inner))
