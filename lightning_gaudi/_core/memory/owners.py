"""Finds the tensors that hold a card's memory, by category, where libraries keep them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi._core import fsdp2
from lightning_gaudi._core.memory import tags as memory_tags

STAYING = ("weights", "gradients", "optimizer state", "communication buckets")
"""Categories whose size does not depend on the batch."""
PRECEDENCE = ("gathered weights", "communication buckets", *STAYING[:-1], "KV cache", "latents")
"""All categories in order of precedence: memory of two counts for the first of them.

It belongs to the other only for a while, as gathered weights are a model's parameters.
"""

PASSING = PRECEDENCE[:2]
"""Those of what comes and goes within a step. They come first, so that no other decides on them."""

_BUCKETS = re.compile(r"bucket|ipg_buffer|reduce_tmp", re.I)
_GRADIENTS = re.compile(r"averaged_gradients|grad_partition|contiguous_grad", re.I)
_MASTERS = re.compile(r"fp32_partitioned_groups_flat$")
"""ZeRO-3's, which its groups have during a step alone."""
_IN_FLIGHT = re.compile(r"__inflight_param_registry$")
"""Attributes of DeepSpeed's optimizers, and of what gathers for them.

Source: DeepSpeed 0.15 to 0.19 (`runtime/zero`).
"""


def holders(
    module: Any,
    optimizers: Sequence[Any],
    device: str = "hpu",
    *,
    modules: Sequence[Any] | None = None,
    only: Collection[str] = PRECEDENCE,
) -> dict[str, list[Tensor]]:
    """Returns what is on a device now: one tensor for each piece of memory, by category.

    Memory that two tensors share counts once. DistributedDataParallel's buckets count as the
    gradients that are views of them. The host knows all of this without waiting for the card.

    Args:
        module: The model, wrapped or not; None where there is none.
        optimizers: Of torch or DeepSpeed.
        device: "hpu", or "cpu" for what is offloaded.
        modules: Those of the model, where they are known: to find them takes milliseconds.
        only: These categories; all by default. Others decide on them as far as they are asked for.
    """
    if modules is None:
        modules = [] if module is None else list(module.modules())
    parameters = [*_unique(each._parameters for each in modules)]
    shards = [*_sharded(modules)]
    found: dict[str, Callable[[], Iterable[Any]]] = {
        "weights": lambda: chain(
            parameters,
            _unique(each._buffers for each in modules),
            _stepped(optimizers),
            (each.own for each in shards),
        ),
        "gradients": lambda: chain(
            (e.grad for e in chain(parameters, _grouped(optimizers), _masters(optimizers))),
            (each.gradients for each in shards),
            _attributes(optimizers, _GRADIENTS),
        ),
        "optimizer state": lambda: _states(optimizers),
        "communication buckets": lambda: chain(
            (each.buckets for each in shards), _attributes([module, *optimizers], _BUCKETS)
        ),
        "gathered weights": lambda: chain(
            (each.gathered for each in shards), _gathered(parameters, optimizers)
        ),
        "KV cache": lambda: memory_tags.declared("KV cache"),
        "latents": lambda: memory_tags.declared("latents"),
    }
    seen: set[int] = set()
    kept = {name: _on(device, found[name](), seen) for name in PRECEDENCE if name in only}
    return {name: kept[name] for name in found if name in only}


def _unique(by_name: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Yields what modules have by name, once each."""
    seen = {id(None)}
    for tensor in chain.from_iterable(each.values() for each in by_name):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def num_fsdp_parts(module: Any) -> int:
    """Returns the number of shards of a FullyShardedDataParallel model; 1 if it is not sharded."""
    handles: list[Any] = [vars(each).get("_handle") for each in module.modules()]
    parts = [each.world_size for each in handles if getattr(each, "uses_sharded_strategy", False)]
    return max(parts, default=1)


def gathers(module: Any) -> bool:
    """Returns whether a model keeps its weights in shards and gathers them for a while."""
    return any(True for _ in _sharded(module.modules())) or any(
        hasattr(each, "ds_tensor") for each in module.parameters()
    )


class _Shards:
    """The tensors that FSDP or FSDP2 holds for the weights that it shards together."""

    def __init__(self) -> None:
        self.own: list[Any] = []
        self.gathered: list[Any] = []
        self.gradients: list[Any] = []
        self.buckets: list[Any] = []


def _sharded(modules: Iterable[Any]) -> Iterator[_Shards]:
    """Yields the shards of each module of FSDP or FSDP2, as they are in torch 2.6 to 2.13."""
    modules = [*modules]
    for each in modules:
        # Not by `getattr`: a module's own `__getattr__` may raise, or ask the module that it wraps.
        handle = vars(each).get("_handle")  # of FSDP
        if hasattr(handle, "flat_param"):
            yield _of_handle(handle)
    for state in fsdp2.states_among(modules):
        yield from _of_state(state)


def _of_handle(handle: Any) -> _Shards:
    found, flat = _Shards(), handle.flat_param
    names = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
    found.gathered = [getattr(flat, name, None) for name in names]
    found.own = [getattr(flat, "_local_shard", None)]
    found.gradients = [flat.grad, getattr(flat, "_saved_grad_shard", None)]
    return found


def _of_state(state: Any) -> Iterator[_Shards]:
    found, shared = _Shards(), state._comm_ctx
    gathers = [getattr(shared, "all_gather_state", None)]
    # Several since torch 2.13.
    reduced = [getattr(shared, f"reduce_scatter_state{end}", None) for end in ("", "s")]
    for group in fsdp2.groups_of(state):
        gathers.append(group._all_gather_result)
        reduced.append(getattr(group, "_all_reduce_state", None))
        for each in group.fsdp_params:
            found.own.append(each._sharded_param_data)
            found.gathered.append(each.all_gather_outputs)
            whole = getattr(each, "_unsharded_param", None)
            found.gathered.append(whole)
            found.gradients += [getattr(whole, "grad", None), each.unsharded_accumulated_grad]
    found.gathered += gathers
    found.buckets += reduced
    yield found


def _gathered(parameters: Iterable[Any], optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yields the weights that ZeRO-3 has gathered, and the buffers that it gathered them in."""
    for each in parameters:
        if hasattr(each, "ds_tensor") and each.numel():  # else it is empty
            yield each.data
    for optimizer in optimizers:
        coordinator = getattr(getattr(optimizer, "parameter_offload", None), "param_coordinator", 0)
        for registry in _attributes([coordinator], _IN_FLIGHT):
            for handle in registry.values():
                for each in getattr(handle, "handles", [handle]):  # one for each dtype
                    yield getattr(each, "partitions", None)


def _on(device: str, tensors: Iterable[Any], seen: set[int]) -> list[Tensor]:
    """Returns those tensors on the device whose memory has not been seen."""
    found: list[Tensor] = []
    for tensor in tensors:
        for local in _locals(tensor):
            if local.device.type != device:
                continue
            storage = local.untyped_storage()
            # By the host's storage object, since in lazy mode a tensor has no address on the card
            # before its graph has run.
            if storage.nbytes() and storage._cdata not in seen:
                seen.add(storage._cdata)
                found.append(local)
    return found


def _locals(value: Any) -> Iterator[Tensor]:
    """Yields the tensors that a value has on this rank."""
    if isinstance(value, Tensor):
        # Not `to_local()`, which makes a view under autograd and takes seconds for a large model.
        yield getattr(value, "_local_tensor", value)
        shard = getattr(value, "ds_tensor", None)  # of ZeRO-3
        if isinstance(shard, Tensor):
            yield shard
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _locals(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _locals(each)
    elif hasattr(value, "elements"):  # a bucket of ZeRO's since DeepSpeed 0.17
        yield from _locals(value.buffer)


def _stepped(optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yields the weights that torch's optimizers step; while FSDP gathers, its model has others."""
    return _grouped([each for each in optimizers if isinstance(each, torch.optim.Optimizer)])


def _states(optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yields what optimizers hold beside the weights, DeepSpeed's master weights included."""
    for optimizer in optimizers:
        yield getattr(optimizer, "state", {})
    yield from _grouped(optimizers)  # masters; weights have been counted
    yield from _masters(optimizers)


def _masters(optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yields the master weights of ZeRO-3; without mixed precision its shards of the weights."""
    for found in _attributes(optimizers, _MASTERS):
        yield from found


def _grouped(optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yields what optimizers step: weights, or their masters."""
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", []):
            yield from group["params"]


def _attributes(owners: Sequence[Any], names: re.Pattern[str]) -> Iterator[Any]:
    for owner in owners:
        for name, value in [*vars(owner).items()] if hasattr(owner, "__dict__") else ():
            if names.search(name):
                yield value
