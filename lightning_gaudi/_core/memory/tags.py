"""What of a card's memory is neither a model's nor an optimizer's, told by who holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

_held: WeakKeyDictionary[Any, tuple[str, Callable[[Any], Any]]] = WeakKeyDictionary()


def declare(owner: Any, category: str, tensors: Callable[[Any], Any]) -> None:
    """Says what an object's tensors are for, as long as it is there.

    Args:
        owner: The object; it is not kept.
        category: One of those of `owners`.
        tensors: Gives the owner's tensors of now, in lists and dicts if it likes.
    """
    _held[owner] = (category, tensors)


def declared(category: str) -> Iterator[Any]:
    """Yields what is held for something now, by all owners."""
    for owner, (name, tensors) in [*_held.items()]:
        if name == category:
            yield tensors(owner)
