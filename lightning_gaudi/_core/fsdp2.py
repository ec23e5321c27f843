"""Reads the private state that torch's fully_shard keeps of the modules it has sharded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module


def states_of(module: Module | None) -> Iterator[Any]:
    """Yields the states of all sharded modules in a module, itself included."""
    yield from states_among(() if module is None else module.modules())


def states_among(modules: Iterable[Module]) -> Iterator[Any]:
    """Yields the states of those modules that are sharded."""
    for each in modules:
        # The class is asked, since a module's own `__getattr__` may raise, or ask the module that
        # it wraps.
        sharded: Any = each
        if hasattr(type(each), "_get_fsdp_state") and (state := sharded._get_fsdp_state()):
            yield state


def groups_of(state: Any) -> list[Any]:
    """Returns a state's groups of weights that are gathered together; several since torch 2.13."""
    groups = getattr(state, "_fsdp_param_groups", None)
    return [each for each in ([state._fsdp_param_group] if groups is None else groups) if each]
