"""Clips the gradients of sharded models by their total norm.

FSDP's modules compute the norm of their shards themselves. DTensors, plain tensors, or both are
clipped here as if they were all in one place. torch clips either but not both at once, nor DTensors
of several meshes, such as a layer that is sharded over both axes of a mesh beside one that is
sharded over a single axis (torch 2.13, `nn/utils/clip_grad.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import Module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer


def clip_fsdp_norm(
    model: Module, optimizer: Optimizer, max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scales an optimizer's gradients down to a norm of at most `max_norm`; all ranks call it.

    As without shards, the norm is that of this optimizer's gradients alone, over all its layers.

    Args:
        model: What is, or has in it, modules wrapped in FullyShardedDataParallel.
        optimizer: Of some of its parameters.
        max_norm: In units of the gradients.
        norm_type: The p of the norm; may be infinite.

    Returns:
        The norm before clipping, of shape (), on the gradients' device: nobody waits for it.
    """
    roots = FullyShardedDataParallel.fsdp_modules(model, root_only=True)
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with _without_gradients(model, set(mine)):
        if len(roots) == 1:
            return roots[0].clip_grad_norm_(max_norm, norm_type)
        # Layers that are wrapped one by one know only their own norms.
        # With an infinite limit this returns the norm and clips nothing.
        norms = [root.clip_grad_norm_(math.inf, norm_type) for root in roots]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        clip_grads_with_norm_(mine, max_norm, norm)
        return norm


@contextmanager
def _without_gradients(model: Module, mine: set[Tensor]) -> Iterator[None]:
    """Hides all gradients but those of `mine`, since FSDP clips every gradient that it finds."""
    others = [parameter for parameter in model.parameters() if parameter not in mine]
    gradients = [parameter.grad for parameter in others]
    for parameter in others:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(others, gradients, strict=True):
            parameter.grad = gradient


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
        norm_type: The p of the norm; may be infinite.
        error_if_nonfinite: Whether to wait for the norm and look at it.

    Returns:
        The norm before clipping, of shape (), a plain tensor on the card that nobody waits for; on
        the CPU where there is no gradient at all.

    Raises:
        RuntimeError: The norm is infinite or not a number, and `error_if_nonfinite`.
    """
    gradients = _gradients(parameters)
    if not gradients:
        return torch.tensor(0.0)
    meshes: dict[DeviceMesh | None, list[Tensor]] = {}
    for gradient in gradients:
        mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
        meshes.setdefault(mesh, []).append(gradient)
    norms = [_norm_on(mesh, found, norm_type) for mesh, found in meshes.items()]
    norm = get_total_norm(norms, norm_type, error_if_nonfinite)
    # The factor is applied always, as torch does: to compare on the host would wait for the card.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in map(_local, gradients):
        part.mul_(factor.to(part.device))
    return norm


@torch.no_grad()
def clip_dtensor_value(parameters: Iterable[Tensor], max_value: float) -> None:
    """Clamps each element of the gradients to between `-max_value` and `max_value`."""
    for gradient in _gradients(parameters):
        _local(gradient).clamp_(-max_value, max_value)


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


def _norm_on(mesh: DeviceMesh | None, gradients: list[Tensor], norm_type: float) -> Tensor:
    if mesh is None:
        return get_total_norm(gradients, norm_type)
    norms = [_on_card(torch.linalg.vector_norm(each, norm_type)) for each in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _on_card(norm: Tensor) -> Tensor:
    """Moves the norm of offloaded gradients to the card, by which their ranks are connected."""
    assert isinstance(norm, DTensor)
    mesh = norm.device_mesh
    if norm.device.type == mesh.device_type:
        return norm
    # `norm.to` would first reduce it over the ranks.
    return DTensor.from_local(norm.to_local().to(mesh.device_type), mesh, norm.placements)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
