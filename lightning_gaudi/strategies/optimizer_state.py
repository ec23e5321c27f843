"""What of optimizers a fit needs to go on exactly, and no `state_dict` of theirs has.

The states of those that another one holds, as SAM and Lookahead do (momentum, most often), and the
gradients that were accumulated, and not yet given to an optimizer, as the fit saved.
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


_HOOKS = "_optimizer_step_post_hooks"
_TAKEN = "_lightning_gaudi_taken"
"""Set on a gradient that an optimizer has stepped with: its version then."""


def watch_steps(optimizers: list[Any]) -> list[Any]:
    """Marks the gradients that optimizers step with: where users step by hand, nobody else knows.

    Returns:
        What to call `remove()` of as the fit ends.
    """
    # One that never called the constructor of its class has no hooks; what it holds may have.
    own = [each for each in nested(optimizers).values() if _HOOKS in vars(each)]
    return [each.register_step_post_hook(_mark) for each in own]


def gradients(trainer: pl.Trainer, *, is_within_epoch: bool, are_whole: bool) -> dict[str, Tensor]:
    """Returns what this rank has accumulated since the last step, on the CPU, by name.

    Args:
        trainer: Of a fit.
        is_within_epoch: Whether the epoch has batches to come.
        are_whole: Whether each rank has its own of all parameters. Where they are sharded none can
            be saved, which is said.
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
    version: int = grad._version
    return getattr(grad, _TAKEN, None) != version
