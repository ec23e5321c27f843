"""Decodes JSON of another process into dataclasses, and checks every type."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from lightning_gaudi.untrusted import printable

_LARGEST = 2**63 - 1
_Decoded = TypeVar("_Decoded")


def decode(kind: type[_Decoded], value: Any, name: str = "it") -> _Decoded:
    """Returns a value of JSON as a type of Python.

    Args:
        kind: A dataclass, all of whose fields must be there, str, int, float, bool, an Enum, list,
            dict or tuple of these, or one of them or None. Keys of a dict may be whole numbers,
            which JSON writes as text.
        value: What JSON gave.
        name: What it is called in messages.

    Raises:
        ValueError: It is of another type, has a field too many or too few, or a number of more
            than 64 bits.
    """
    if dataclasses.is_dataclass(kind):
        return typing.cast("_Decoded", _dataclass(kind, value, name))
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (each for each in parts if each is not type(None))
        return typing.cast("_Decoded", None if value is None else decode(inner, value, name))
    if origin in (list, tuple) and isinstance(value, list):
        found = (decode(parts[0], each, f"{name}[{at}]") for at, each in enumerate(value))
        return typing.cast("_Decoded", origin(found))
    if origin is dict and isinstance(value, dict):
        key, inner = parts
        pairs = ((_key(key, each, name), decode(inner, of, name)) for each, of in value.items())
        return typing.cast("_Decoded", dict(pairs))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = {each.value: each for each in kind}
        value = known.get(value) if isinstance(value, str) else None
    return _plain(kind, value, name)


def _plain(kind: type[_Decoded], value: Any, name: str) -> _Decoded:
    # Python reads numbers of any length, which other programs and C code cannot hold.
    is_number = type(value) is int and abs(value) <= _LARGEST
    if kind is float and is_number:
        return typing.cast("_Decoded", float(value))
    if type(value) is kind and kind not in (list, dict, tuple) and (kind is not int or is_number):
        return value
    shown = printable(repr(value)[:200], max_chars=60)
    raise ValueError(f"{printable(name, max_chars=100)} is {shown}, and no {_title(kind)}.")


def _title(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


def _key(kind: type, key: str, name: str) -> Any:
    if kind is not int:
        return key
    is_number = key.removeprefix("-").isdecimal() and key.isascii() and len(key) < 19
    return decode(int, int(key) if is_number else key, f"a key of {name}")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{printable(name, max_chars=100)} is no mapping.")
    hints = _hints(kind)
    if unknown := [each for each in value if each not in hints]:
        shown = printable(unknown[0], max_chars=60)
        raise ValueError(f"{printable(name, max_chars=100)} has an unknown {shown!r}.")
    if missing := [each for each in hints if each not in value]:
        raise ValueError(f"{printable(name, max_chars=100)} has no {missing[0]!r}.")
    return kind(**{key: decode(hints[key], each, key) for key, each in value.items()})
