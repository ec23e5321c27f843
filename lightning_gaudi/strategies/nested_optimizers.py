"""Optimizers that hold another one, as SAM and Lookahead do, and its state.

What `state_dict` leaves out is lost to a fit that resumes: momentum of the inner one, most often.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

States = dict[str, Any]
"""`state` of a `state_dict`, on the CPU, by where the optimizer is held: "0.base_optimizer"."""


def nested(optimizers: Iterable[Any]) -> dict[str, Optimizer]:
    """Returns the optimizers of torch among these and in them, by where: "0", "0.base_optimizer".

    Args:
        optimizers: Of a fit; one of an engine's own kind is left out.
    """
    found: dict[str, Optimizer] = {}
    seen: set[int] = set()
    to_see = deque((str(index), each) for index, each in enumerate(optimizers))
    while to_see:
        key, value = to_see.popleft()
        if not isinstance(value, (Optimizer, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Optimizer):
            found[key] = value
            inside: Iterable[tuple[Any, Any]] = vars(value).items()
        else:
            inside = enumerate(value)
        to_see.extend((f"{key}.{name}", each) for name, each in inside)
    return found


def take(optimizers: Iterable[Any]) -> States:
    """Returns the states of inner optimizers that no checkpoint of the outer ones has."""
    optimizers = list(optimizers)
    outer = {str(index) for index in range(len(optimizers))}
    inner = {key: each for key, each in nested(optimizers).items() if key not in outer}
    states = {key: each.state_dict()["state"] for key, each in inner.items() if each.state}
    if not states:
        return {}
    kept = {id(leaf) for each in optimizers for leaf in tree_leaves(each.state_dict())}
    return {key: tree_map(_on_cpu, each) for key, each in states.items() if not _is_in(each, kept)}


def put(optimizers: Iterable[Any], states: Mapping[str, Any]) -> list[str]:
    """Gives inner optimizers what `take` returned in another process.

    Returns:
        Where those are held that these optimizers do not hold.
    """
    found = nested(optimizers)
    for key in states.keys() & found.keys():
        optimizer = found[key]
        loaded = copy.copy(optimizer)  # whose groups become others; these may be the outer one's
        loaded.load_state_dict({**optimizer.state_dict(), "state": states[key]})
        optimizer.state.clear()
        optimizer.state.update(loaded.state)
    return sorted(states.keys() - found.keys())


def _is_in(state: Any, kept: set[int]) -> bool:
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    return bool(tensors) and all(id(each) in kept for each in tensors)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
