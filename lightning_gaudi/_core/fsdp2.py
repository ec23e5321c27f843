"""What torch's fully_shard keeps of the modules that it has sharded; its own names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.nn import Module


def states_of(module: Module | None) -> Iterator[Any]:
    """Yields the states of the sharded modules among a module and those in it."""
    for each in () if module is None else module.modules():
        # Of the class: a module's own may raise, or ask the module that it wraps.
        sharded: Any = each
        if hasattr(type(each), "_get_fsdp_state") and (state := sharded._get_fsdp_state()):
            yield state


def groups_of(state: Any) -> list[Any]:
    """Returns its groups of weights that are gathered together: several since torch 2.13."""
    groups = getattr(state, "_fsdp_param_groups", None)
    return [each for each in ([state._fsdp_param_group] if groups is None else groups) if each]
