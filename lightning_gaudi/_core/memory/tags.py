"""Lets objects declare card memory that belongs neither to a model nor to an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

_held: WeakKeyDictionary[Any, tuple[str, Callable[[Any], Any]]] = WeakKeyDictionary()


def declare(owner: Any, category: str, tensors: Callable[[Any], Any]) -> None:
    """Declares the category of an object's tensors for as long as the object lives.

    Args:
        owner: The object, to which only a weak reference is kept.
        category: A category of `owners`.
        tensors: Returns the owner's present tensors, possibly in lists and dicts.
    """
    _held[owner] = (category, tensors)


def declared(category: str) -> Iterator[Any]:
    """Yields the present tensors of a category, of all owners."""
    for owner, (name, tensors) in [*_held.items()]:
        if name == category:
            yield tensors(owner)
