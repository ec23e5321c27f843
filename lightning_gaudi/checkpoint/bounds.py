"""What a small pickle may not make large: memory or time that does not come from its own bytes.

A pickle of a hundred bytes may ask for a list of a billion numbers, for a list that holds itself
twice sixty times over, or for a dict whose keys take an hour to hash. None of that is in what
`torch.save` writes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from .errors import RefusedError

_FILLED = (
    *(bytes, bytearray, dict, frozenset, list, set, str, tuple),
    *(Counter, OrderedDict, defaultdict, deque),
)
"""What is made of the items that it is given."""

_ITEMS = (bytes, bytearray, dict, frozenset, list, set, str, tuple, Counter, OrderedDict, deque)
"""What has its items in memory, so that what is made of them is no larger."""

_MAX_KEY = 1000
"""How many values a key may consist of: each is hashed as often as it occurs in the key."""

_MAX_DEPTH = 200
"""How deep values may lie in each other: those who read them call themselves for each level."""

_MAX_VALUES = 10**8
"""How many values there may be, each counted as often as it occurs."""


def check_arguments(kind: Any, arguments: Iterable[Any]) -> None:
    """Refuses to fill a container with what is in no memory yet, such as a range.

    Args:
        kind: What is called.
        arguments: What it would be called with.

    Raises:
        RefusedError: It would be larger than the pickle.
    """
    if kind not in _FILLED:
        return
    first, *_ = [*arguments, ()]
    if kind is defaultdict:
        return  # its first argument makes what is missing, the second may be a dict
    if not isinstance(first, _ITEMS):
        raise RefusedError(f"a {kind.__name__} of a {type(first).__name__}")
    if isinstance(first, (list, tuple, deque)):
        for item in first:
            check_key(item)


def check_key(key: Any) -> None:
    """Refuses what takes long to hash, or has the hash of all others that somebody chose.

    Args:
        key: Of a dict, or an item of a set.

    Raises:
        RefusedError: It is a large integer, or a tuple of very many values.
    """
    if type(key) is str:
        return
    left, num_values = [key], 0
    while left:
        value, num_values = left.pop(), num_values + 1
        if isinstance(value, int) and abs(value) >= 2**63:
            raise RefusedError("a key of more than 64 bits")
        if num_values > _MAX_KEY:
            raise RefusedError(f"a key of more than {_MAX_KEY} values")
        if isinstance(value, (tuple, frozenset)):
            left.extend(value)


def check_extent(value: Any) -> None:
    """Refuses dicts and lists that lie too deep in each other, or are shared too often.

    Args:
        value: All that a pickle has given.

    Raises:
        RefusedError: Whoever goes through it would not come to an end.
    """
    known: dict[int, tuple[int, int]] = {}  # of each container how deep it is, and its values
    left, entered = [value], set[int]()
    while left:
        container = left[-1]
        items = None if id(container) in known else _items(container)
        if items is None:
            left.pop()
            continue
        missing = [item for item in items if _items(item) is not None and id(item) not in known]
        if missing and id(container) not in entered:
            entered.add(id(container))
            left += missing
        elif missing and any(id(item) in entered for item in missing):
            raise RefusedError("a value that holds itself")
        else:
            left.pop()
            known[id(container)] = _extent(items, known)


def _extent(items: list[Any], known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    within = [known[id(item)] for item in items if id(item) in known]
    depth = 1 + max((each[0] for each in within), default=0)
    num_values = len(items) + sum(each[1] for each in within)
    if depth > _MAX_DEPTH:
        raise RefusedError(f"values that lie more than {_MAX_DEPTH} deep in each other")
    if num_values > _MAX_VALUES:
        raise RefusedError(f"more than {_MAX_VALUES:,} values, most of them the same ones again")
    return depth, num_values


def _items(value: Any) -> list[Any] | None:
    """Returns what is in a container that holds something; None of anything else."""
    if isinstance(value, dict):
        return [*value.values(), *(key for key in value if isinstance(key, tuple))] or None
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return [*value] or None
    return None
