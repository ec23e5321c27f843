"""Saves and loads the objects of Fabric's user, with DeepSpeed's model and optimizer among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.strategies.strategy import _validate_keys_for_strict_loading
from lightning.fabric.utilities.load import _move_state_into
from lightning.fabric.utilities.types import _PATH
from torch.nn import Module
from torch.optim import Optimizer

from . import load as loading, save as saving
from .consolidate import MODEL_NAME

State = dict[str, Any]


def save(
    path: _PATH,
    state: State,
    convert: Callable[[State], State],
    *,
    exclude_frozen: bool,
    with_manifest: bool = True,
    **unsupported: Any,
) -> None:
    """Saves objects by name, the model and its optimizer in shards.

    Args:
        path: A local folder, the same on all ranks, or an address.
        state: The objects; one is an engine.
        convert: Makes state dicts of those that have one.
        exclude_frozen: See `saving.save`.
        with_manifest: The same.
        unsupported: Arguments of `Fabric.save` that must be None.

    Raises:
        TypeError: One of them is given.
        ValueError: There is no engine, or there are several; see `saving.save` for others.
    """
    for name, value in unsupported.items():
        if value is not None:
            raise TypeError(
                f"DeepSpeed saves its shards as they are and has no use for {name}={value!r}. "
                "Leave it out."
            )
    engine, name = _engine(state, f"save({str(path)!r}, ...)")
    others = {key: each for key, each in state.items() if not _is_engine_s(each, engine)}
    saving.save(
        engine,
        path,
        {**convert(others), MODEL_NAME: name},
        exclude_frozen=exclude_frozen,
        with_manifest=with_manifest,
    )


def load(path: _PATH, state: Any, *, strict: bool, verify: bool = True) -> State:
    """Loads objects in place from a sharded checkpoint.

    Args:
        path: The local folder, the same on all ranks.
        state: The objects by name, or the engine alone. Without its optimizer only weights are
            loaded.
        strict: Whether the checkpoint must have all of them, and all weights.
        verify: Whether to compare all of it with its manifest, if it has one.

    Returns:
        What else the checkpoint has.
    """
    objects = {"model": state} if isinstance(state, Module) else state
    engine, _ = _engine(objects if isinstance(objects, dict) else {}, f"load({str(path)!r}, ...)")
    found = loading.load(
        engine,
        path,
        with_optimizer=any(each is engine.optimizer for each in objects.values()),
        strict=strict,
        verify=verify,
    )
    found.pop(MODEL_NAME, None)
    others = {key for key, each in objects.items() if not _is_engine_s(each, engine)}
    _validate_keys_for_strict_loading(others, found.keys(), strict)
    _move_state_into(source=found, destination=objects, keys=others & found.keys())
    return found


def load_whole(
    path: _PATH,
    state: Any,
    files: CheckpointIO,
    load_model: Callable[[Module, State], None],
    *,
    strict: bool,
    weights_only: bool | None,
) -> State:
    """Loads objects from a checkpoint of another strategy, or a consolidated one.

    Args:
        path: A file, or a folder of torch's shards.
        state: The objects by name, or one of them, or nothing.
        files: What reads files.
        load_model: Loads a state dict into a model.
        strict: Whether the checkpoint must have all of them.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.

    Returns:
        What else the checkpoint has.

    Raises:
        ValueError: DeepSpeed's optimizer is among them, which is sharded.
    """
    for name, each in state.items() if isinstance(state, dict) else [("obj", state)]:
        if hasattr(each, "load_state_dict") and not isinstance(each, (Module, Optimizer)):
            _check_is_no_optimizer(path, name, each)
    checkpoint = loading.read_unsharded(path, files, weights_only=weights_only)
    if not state:
        return checkpoint
    if isinstance(state, Module):
        load_model(state, checkpoint)
        return {}
    if isinstance(state, Optimizer):
        state.load_state_dict(checkpoint)
        return {}
    _validate_keys_for_strict_loading(state.keys(), checkpoint.keys(), strict)
    names = state.keys() & checkpoint.keys()
    for name in names:
        if isinstance(state[name], Module):
            load_model(state[name], checkpoint.pop(name))
    _move_state_into(source=checkpoint, destination=state, keys=names & checkpoint.keys())
    return checkpoint


def is_engine(value: Any) -> bool:
    """Returns whether a value is DeepSpeed's engine, which `Fabric.setup` makes of a model."""
    from deepspeed import DeepSpeedEngine

    return isinstance(value, DeepSpeedEngine)


def _engine(state: State, typed: str) -> tuple[Any, str]:
    """Returns the engine among the objects, and its name."""
    found = [(each, name) for name, each in state.items() if is_engine(each)]
    if len(found) != 1:
        names = ", ".join(repr(name) for _, name in found) or "none"
        raise ValueError(
            f"Fabric.{typed} needs one model of DeepSpeed's among the objects, and there is "
            f"{names}. Pass {{'model': model, ...}} with the one that Fabric.setup() returned; "
            "several models take a folder each."
        )
    return found[0]


def _is_engine_s(value: Any, engine: Any) -> bool:
    """Returns whether a value is the engine, or the optimizer that is saved with it."""
    return value is engine or (value is engine.optimizer and value is not None)


def _check_is_no_optimizer(path: _PATH, name: str, value: Any) -> None:
    from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer

    if isinstance(value, DeepSpeedOptimizer):
        raise ValueError(
            f"The checkpoint {path} was not saved by DeepSpeed, whose optimizer {name!r} is in "
            "shards and cannot be loaded from it. Load the model without it: the optimizer starts "
            "anew."
        )
