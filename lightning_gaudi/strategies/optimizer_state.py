"""Keeps states of optimizers that their `state_dict` leaves out and an exact resume needs.

These are the states of optimizers that another one holds, as SAM and Lookahead do (most often
momentum), and gradients that were accumulated but not yet stepped with when the fit saved.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

States = dict[str, Any]
"""States of optimizers on the CPU, by where each is held, such as "0.base_optimizer"."""


def nested(optimizers: Iterable[Any]) -> dict[str, Optimizer]:
    """Returns all optimizers of torch, and those they hold, by keys such as "0.base_optimizer".

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
    """Returns the states of inner optimizers that the outer ones' `state_dict` leaves out."""
    optimizers = list(optimizers)
    outer = {str(index) for index in range(len(optimizers))}
    inner = {key: each for key, each in nested(optimizers).items() if key not in outer}
    states = {key: each.state_dict()["state"] for key, each in inner.items() if each.state}
    if not states:
        return {}
    # Some outer optimizers share their state with the inner one. What they save themselves is not
    # saved twice.
    kept = {id(leaf) for each in optimizers for leaf in tree_leaves(each.state_dict())}
    return {key: tree_map(_on_cpu, each) for key, each in states.items() if not _is_in(each, kept)}


def put(optimizers: Iterable[Any], states: Mapping[str, Any]) -> list[str]:
    """Gives inner optimizers the states that `take` returned in another process.

    Returns:
        The keys of states for which there is no optimizer.
    """
    found = nested(optimizers)
    for key in states.keys() & found.keys():
        optimizer = found[key]
        # `load_state_dict` replaces the list of groups, which an inner optimizer may share with the
        # outer one. So a copy loads, and its state is taken.
        loaded = copy.copy(optimizer)
        loaded.load_state_dict({**optimizer.state_dict(), "state": states[key]})
        optimizer.state.clear()
        optimizer.state.update(loaded.state)
    return sorted(states.keys() - found.keys())


def _is_in(state: Any, kept: set[int]) -> bool:
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    return bool(tensors) and all(id(each) in kept for each in tensors)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


_HOOKS = "_optimizer_step_post_hooks"
_TAKEN = "_lightning_gaudi_taken"
"""The attribute of a gradient with its version when an optimizer stepped with it."""


def watch_steps(optimizers: list[Any]) -> list[Any]:
    """Marks the gradients with which optimizers step, which only the user knows otherwise.

    Returns:
        Handles whose `remove()` is to be called when the fit ends.
    """
    # A wrapper that does not call its base class's constructor has no hooks; what it holds has
    # some.
    own = [each for each in nested(optimizers).values() if _HOOKS in vars(each)]
    return [each.register_step_post_hook(_mark) for each in own]


def gradients(trainer: pl.Trainer, *, is_within_epoch: bool, are_whole: bool) -> dict[str, Tensor]:
    """Returns the gradients that this rank has accumulated since the last step, on the CPU.

    Args:
        trainer: Of a fit.
        is_within_epoch: Whether the epoch has batches to come.
        are_whole: Whether each rank has whole gradients. Sharded ones cannot be saved, of which a
        warning tells.
    """
    module = trainer.lightning_module
    named = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    if module.automatic_optimization:
        loop, every = trainer.fit_loop.epoch_loop, trainer.accumulate_grad_batches
        num_batches = loop.batch_progress.current.ready % every
        if not is_within_epoch or not num_batches or not loop._should_accumulate():
            return {}
        what = f"after {num_batches} of {every} batches that are accumulated"
    else:
        named = {name: grad for name, grad in named.items() if _is_to_step(grad)}
        if not named:
            return {}
        what = "with gradients that are accumulated by hand"
    if are_whole:
        return {name: grad.cpu() for name, grad in named.items()}
    rank_zero_warn(
        f"A checkpoint is saved {what}, and {type(trainer.strategy).__name__} cannot save these "
        "gradients: a fit that resumes takes its next step without them. Save after a step of the "
        "optimizer, as ModelCheckpoint(every_n_train_steps=...) does."
    )
    return {}


def _mark(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for each in group["params"]:
            if (grad := each.grad) is not None:
                setattr(grad, _TAKEN, grad._version)


def _is_to_step(grad: Tensor) -> bool:
    # `zero_grad` and each accumulation write to the gradient, which changes its version.
    version: int = grad._version
    return getattr(grad, _TAKEN, None) != version
