"""Takes the states of sharded models and optimizers, and loads them from any checkpoint.

FSDP, FSDP2 and tensor parallelism keep their shards in different ways. torch's functions for
distributed state dicts know them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.fsdp import (
    FlatParameter,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core.collectives import cpu_group, is_connected

from ..errors import DamagedCheckpointError, UntrustedCheckpointError
from .compatibility import CheckpointIndex
from .load import Planner, Reader, read_metadata
from .memory_reader import MemoryReader

State = dict[str, Any]

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The parts that FSDP and activation checkpointing add to the names of modules."""


def model_state(model: Module, *, full: bool, offload: bool = True) -> State:
    """Returns the state of a model, by the names that its weights have without wrappers.

    Args:
        model: In shards.
        full: Whether to gather the shards on rank 0; the other ranks then get an empty state.
        offload: Whether to move the shards to the CPU. Those of FullyShardedDataParallel are moved
            in any case: it makes new tensors of them, for which a card may have no room.

    Returns:
        Tensors on the CPU, or without `offload` the model's own tensors.
    """
    if _is_wrapped(model):
        with _offloading(model, full):
            return dict(model.state_dict())
    return get_model_state_dict(model, options=_options(full, offload=offload))


def optimizer_state(
    model: Module, optimizer: Optimizer, *, full: bool, offload: bool = True
) -> State:
    """Returns the state of an optimizer, by the names of its parameters; see `model_state`."""
    state: State
    if _is_wrapped(model):
        with _offloading(model, full):
            state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        return _unflattened(model, optimizer, state)
    # torch lets an optimizer without states make some by a step with zeros: the next real step
    # would be its second. `get_optimizer_state_dict` of torch 2.13; delete once it leaves no trace.
    has_stepped = bool(optimizer.state)
    options = _options(full, offload=offload)
    state = dict(get_optimizer_state_dict(model, optimizer, options=options))
    if not has_stepped:
        optimizer.state.clear()
        if state:
            state["state"] = {}
    return state


def _unflattened(model: Module, optimizer: Optimizer, state: State) -> State:
    """Turns a state of flat parameters into one of the parameters that they are made of.

    The parameters come in the order that they have without FSDP, by which other strategies number
    them.
    """
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    if not state or not any(isinstance(weight, FlatParameter) for weight in parameters):
        return state
    # The order of the modules without FSDP, which is that of their parameters.
    names = [_without_wrappers(name) for name, _ in model.named_modules()]
    modules = {name: number for number, name in enumerate(names)}
    for group in state["param_groups"]:
        group["params"] = sorted(group["params"], key=lambda name: modules[name.rpartition(".")[0]])
    for entry in state["state"].values():
        # The parameters of a flat one share the tensor that counts its steps. Loaded into an
        # optimizer that has them apart, each of them would advance it, so each gets its own.
        counts = {name: value for name, value in entry.items() if _is_scalar(value)}
        entry.update({name: value.clone() for name, value in counts.items()})
    return state


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def is_sharded_model(value: object) -> TypeGuard[Module]:
    """Returns whether a value is a model that FSDP, FSDP2 or tensor parallelism has sharded."""
    return isinstance(value, Module) and (
        _is_wrapped(value) or any(isinstance(weight, DTensor) for weight in value.parameters())
    )


def _is_wrapped(model: Module) -> bool:
    return bool(FullyShardedDataParallel.fsdp_modules(model))


def _offloading(model: Module, full: bool) -> AbstractContextManager[None]:
    """Makes FullyShardedDataParallel give tensors on the CPU.

    torch's functions for all kinds of shards fail with it: they ask for a CUDA device on a rank
    that has no part of a small parameter (torch 2.13, `ShardedTensor.to`).
    """
    if full:
        return FullyShardedDataParallel.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
        )
    return FullyShardedDataParallel.state_dict_type(
        model,
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(offload_to_cpu=True),
        ShardedOptimStateDictConfig(offload_to_cpu=True),
    )


def numbered(state: State) -> State:
    """Returns an optimizer's state with positions for its parameters, as torch has, not names."""
    if not state:
        return state
    names = [name for group in state["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "state": {numbers[name]: entry for name, entry in state["state"].items()},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def load_states(
    source: Path | Mapping[str, Any],
    name: str,
    model: Module,
    optimizers: Mapping[str, Optimizer],
    *,
    strict: bool,
) -> None:
    """Loads a checkpoint of any strategy and number of cards. All ranks call it.

    It is compared with the model before anything is loaded.

    Args:
        source: A folder of shards, or states that each rank has whole, on the CPU. An
            optimizer's state has its parameters by name, or by position as torch's has.
        name: The model's in the checkpoint.
        model: In shards.
        optimizers: Of that model, by the names that they have in the checkpoint.
        strict: Whether the checkpoint must have exactly the names that the model has.

    Raises:
        ValueError: A file is missing or truncated, or it does not fit the model or an optimizer.
    """
    metadata = read_metadata(source) if isinstance(source, Path) else None
    # Strictness is `CheckpointIndex`'s, which names what differs, before anything is loaded.
    options = StateDictOptions(strict=False)
    weights = get_model_state_dict(model, options=options)
    made: dict[str, State] = {
        key: _unflattened(
            model, optimizer, dict(get_optimizer_state_dict(model, optimizer, options=options))
        )
        for key, optimizer in optimizers.items()
    }
    if isinstance(source, Path):
        reader: StorageReader = Reader(source)
    else:
        reader = MemoryReader({key: _named(key, source[key], made) for key in source})
    checkpoint = CheckpointIndex(reader, metadata or reader.read_metadata())
    states = {name: checkpoint.fit_weights(name, weights, strict=strict)}
    groups = {key: checkpoint.param_groups(key, made[key]["param_groups"]) for key in made}
    for key in made:
        states[key] = {"state": checkpoint.fit_optimizer(key, made[key]["state"])}
    group = cpu_group() if is_connected() else None
    try:
        load(states, storage_reader=reader, planner=_Planner(), process_group=group)
    # It holds the errors of all ranks, and is a BaseException.
    except CheckpointException as error:
        raise _of_the_checkpoint(error) from error
    set_model_state_dict(model, states[name], options=options)
    for key, optimizer in optimizers.items():
        state = {**states[key], "param_groups": groups[key]}
        set_optimizer_state_dict(model, optimizer, state, options=options)
        for group, saved in zip(optimizer.param_groups, groups[key], strict=True):
            # torch gives the settings of a group without parameters to another one, and leaves it
            # none (2.13, `_split_optim_state_dict`).
            group.update({name: value for name, value in saved.items() if name != "params"})


def _of_the_checkpoint(error: CheckpointException) -> BaseException:
    """Returns the error of a damaged or untrusted checkpoint in another, if there is one."""
    for found, _ in error.failures.values():
        if isinstance(found, (DamagedCheckpointError, UntrustedCheckpointError)):
            return type(found)(str(found))
    return error


class _Planner(Planner):
    """A planner that does not materialize tensors of the meta device, since there are none.

    torch asks each tensor for its device to do so, and a ShardedTensor without a part on this rank
    answers with a CUDA device (2.13, `_init_state_dict`). FSDP makes these without a mesh.
    """

    @override
    def set_up_planner(
        self, state_dict: State, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner({}, metadata, is_coordinator)
        self.original_state_dict = state_dict
        self.state_dict, self.mappings = flatten_state_dict(state_dict)


def _named(key: str, state: Any, made: Mapping[str, Any]) -> Any:
    """Returns an optimizer's state with names for its parameters in the place of positions."""
    if key not in made or not _is_numbered(state):
        return state
    saved, own = state["param_groups"], made[key]["param_groups"]
    sizes, expected = ([len(group["params"]) for group in groups] for groups in (saved, own))
    if sizes != expected:
        raise ValueError(
            f"The checkpoint's {key} has groups of {sizes} parameters, and this run's has groups "
            f"of {expected}. Configure the optimizer as it was when the checkpoint was saved."
        )
    names = {
        number: name
        for before, now in zip(saved, own, strict=True)
        for number, name in zip(before["params"], now["params"], strict=True)
    }
    return {
        "state": {names[number]: entry for number, entry in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in saved
        ],
    }


def _is_numbered(state: Mapping[str, Any]) -> bool:
    return any(isinstance(name, int) for group in state["param_groups"] for name in group["params"])


def _options(full: bool, *, offload: bool) -> StateDictOptions:
    # torch gathers a full state on rank 0 alone only with `cpu_offload`.
    return StateDictOptions(full_state_dict=full, cpu_offload=full or offload)
