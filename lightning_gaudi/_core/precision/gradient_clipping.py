"""Clips the gradients of sharded models by their total norm.

The shards of FSDP, DTensors, plain tensors, or several of these are clipped as if they were all in
one place. torch clips DTensors or plain tensors but not both at once, nor DTensors of several
meshes, such as a layer that is sharded over both axes of a mesh beside one that is sharded over a
single axis (torch 2.13, `nn/utils/clip_grad.py`). It also launches two operators for each weight;
here a rank's shards are measured by one kernel of the vendor's, and divided by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import Module
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from .. import vendor

Groups = tuple[Any, ...]
"""The process groups over which a gradient is in shards; none where each rank has all of it."""


@torch.no_grad()
def clip_fsdp_norm(
    model: Module, optimizer: Optimizer, max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scales an optimizer's gradients down to a norm of at most `max_norm`; all ranks call it.

    As without shards, the norm is that of this optimizer's gradients alone, over all its layers.

    Args:
        model: What is, or has in it, modules wrapped in FullyShardedDataParallel.
        optimizer: Of some of its parameters.
        max_norm: In units of the gradients.
        norm_type: The p of the norm, above 0; may be infinite.

    Returns:
        The norm before clipping, of shape (), on the card: nobody waits for it.

    Raises:
        ValueError: `norm_type` is not above 0.
    """
    groups: dict[Tensor, Groups] = {}
    # A rank may have no gradient in some group, and still takes part in its sums.
    parts: dict[Groups, list[Tensor]] = {}
    for wrapped in FullyShardedDataParallel.fsdp_modules(model):
        if wrapped.sharding_strategy == ShardingStrategy.NO_SHARD:
            continue
        parts.setdefault((wrapped.process_group,), [])
        for parameter in _sharded_parameters(wrapped):
            groups[parameter] = (wrapped.process_group,)
    for parameter in dict.fromkeys(each for g in optimizer.param_groups for each in g["params"]):
        if parameter.grad is not None:
            parts.setdefault(groups.get(parameter, ()), []).append(parameter.grad)
    return _clip(parts, max_norm, norm_type)


def _sharded_parameters(wrapped: FullyShardedDataParallel) -> Sequence[Tensor]:
    """Returns what an optimizer has of a wrapped module's own weights."""
    if (handle := wrapped._handle) is None:
        return ()
    flat: Any = handle.flat_param
    found: Sequence[Tensor] = flat._params if handle._use_orig_params else (flat,)
    return found


@torch.no_grad()
def clip_dtensor_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scales gradients down so that their norm is at most `max_norm`; all ranks call it.

    Args:
        parameters: Those whose gradients are meant, of any meshes and placements.
        max_norm: In units of the gradients.
        norm_type: The p of the norm, above 0; may be infinite.
        error_if_nonfinite: Whether to wait for the norm and look at it.

    Returns:
        The norm before clipping, of shape (), a plain tensor on the card that nobody waits for; on
        the CPU where there is no gradient at all.

    Raises:
        RuntimeError: The norm is infinite or not a number, and `error_if_nonfinite`.
        ValueError: `norm_type` is not above 0.
    """
    parts: dict[Groups, list[Tensor]] = {}
    for gradient in _gradients(parameters):
        groups: Groups = ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            dims = [i for i, each in enumerate(gradient.placements) if not each.is_replicate()]
            groups = tuple(mesh.get_group(dim) for dim in dims)
        parts.setdefault(groups, []).append(_local(gradient))
    if not parts:
        return torch.tensor(0.0)
    return _clip(parts, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)


@torch.no_grad()
def clip_dtensor_value(parameters: Iterable[Tensor], max_value: float) -> None:
    """Clamps each element of the gradients to between `-max_value` and `max_value`."""
    for held in _alike(map(_local, _gradients(parameters))):
        torch._foreach_clamp_min_(held, -max_value)
        torch._foreach_clamp_max_(held, max_value)


def _clip(
    parts: dict[Groups, list[Tensor]],
    max_norm: float,
    norm_type: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clips what this rank has of all gradients, by the groups that they are in shards over."""
    norm_type = float(norm_type)  # which may be "inf", as torch takes it
    if not norm_type > 0:
        raise ValueError(
            f"Gradients in shards cannot be clipped by the norm of order {norm_type}. Pass a "
            "norm_type above 0, which may be infinite."
        )
    is_on_card = any(parts) or any(
        each.device.type == "hpu" for held in parts.values() for each in held
    )
    device = torch.device("hpu" if is_on_card else "cpu")
    powers = []
    for groups, held in parts.items():
        power = power_of_norm(held, norm_type, device)
        for group in groups:
            kind = dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM
            dist.all_reduce(power, kind, group=group)
        powers.append(power)
    if math.isinf(norm_type):
        norm = powers[0] if len(powers) == 1 else torch.stack(powers).amax()
    else:
        total = powers[0] if len(powers) == 1 else torch.stack(powers).sum()
        norm = total.sqrt() if norm_type == 2 else total.pow(1.0 / norm_type)
    if error_if_nonfinite:
        get_total_norm([norm], norm_type, error_if_nonfinite=True)  # torch's error
    # Divided always, as torch multiplies: to compare on the host would wait for the card.
    divisor = (norm + 1e-6).div_(max_norm).clamp_(min=1.0)
    for held in _alike(each for some in parts.values() for each in some):
        torch._foreach_div_(held, divisor.to(held[0].device, held[0].dtype))
    return norm


def power_of_norm(held: list[Tensor], norm_type: float, device: torch.device) -> Tensor:
    """Returns the p-th power of the norm of some tensors, or their largest element's size.

    Low precisions are summed in float32, since ranks add what others have rounded.
    """
    held = [each for each in held if each.numel()]
    if not held:
        return torch.zeros((), device=device)
    if norm_type == 2 and _takes_kernel(held):
        return vendor.total_norm(held).square_()
    norm = _norm(held, norm_type, device)
    return norm if math.isinf(norm_type) else norm.pow(norm_type)


def two_norm(held: list[Tensor], device: torch.device) -> Tensor:
    """Returns the 2-norm of all elements of some tensors, of shape (), in float32 at least."""
    held = [each for each in held if each.numel()]
    if not held:
        return torch.zeros((), device=device)
    return vendor.total_norm(held) if _takes_kernel(held) else _norm(held, 2.0, device)


def _takes_kernel(held: list[Tensor]) -> bool:
    is_plain = all(each.device.type == "hpu" and each.dtype == torch.float32 for each in held)
    return is_plain and not vendor.is_lazy()


def _norm(held: list[Tensor], norm_type: float, device: torch.device) -> Tensor:
    norms = []
    for each in held:
        dtype = torch.float32 if each.dtype in (torch.bfloat16, torch.float16) else None
        norms.append(torch.linalg.vector_norm(each, norm_type, dtype=dtype).to(device))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm


def _alike(gradients: Iterable[Tensor]) -> list[list[Tensor]]:
    """Returns gradients by device and dtype, as a kernel for lists takes them; no empty ones."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for each in gradients:
        if each.numel():
            found.setdefault((each.device, each.dtype), []).append(each)
    return [*found.values()]


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Returns the gradients, once partial sums of DTensors have been reduced."""
    found = []
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
            whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
            # The norm of a sum is not that of its summands.
            gradient = parameter.grad = gradient.redistribute(placements=whole)
        if gradient is not None:
            found.append(gradient)
    return found


def _local(gradient: Tensor) -> Tensor:
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local
