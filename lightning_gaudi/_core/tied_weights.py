"""Keeps weights tied that are one tensor under several names when a model moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import Module, Parameter


@contextmanager
def kept_tied(module: Module | None) -> Iterator[None]:
    """Ties weights again after the block that were tied before.

    A move to an HPU may give each name of a parameter a copy of its own. The copies would be
    trained separately, and their gradients reduced twice.
    """
    ties = [] if module is None else _ties(module)
    yield
    for first, others in ties:
        tensor = first[0]._parameters[first[1]]
        for owner, name in others:
            owner._parameters[name] = tensor


_Slot = tuple[Module, str]


def _ties(module: Module) -> list[tuple[_Slot, list[_Slot]]]:
    slots: dict[Parameter, list[_Slot]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                slots.setdefault(parameter, []).append((owner, name))
    return [(found[0], found[1:]) for found in slots.values() if len(found) > 1]
