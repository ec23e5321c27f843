"""Gradients that are DTensors, plain tensors, or both: clipped as if they were all in one place.

torch clips either, but not both at once, nor DTensors of several meshes: a layer in shards over
both axes of a mesh beside one over a single axis is refused (torch 2.13, `nn/utils/clip_grad.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import get_total_norm


@torch.no_grad()
def clip_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale gradients down so that their norm is at most `max_norm`; all ranks call it.

    Args:
        parameters: Those whose gradients are meant, of any meshes and placements.
        max_norm: In units of the gradients.
        norm_type: The p of the norm; may be infinite.
        error_if_nonfinite: Whether to wait for the norm and look at it.

    Returns:
        The norm before clipping, of shape (), a plain tensor on the card that nobody waits for.

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
    # As torch: no look at the norm, for which the host would wait.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in map(_local, gradients):
        part.mul_(factor.to(part.device))
    return norm


@torch.no_grad()
def clip_value(parameters: Iterable[Tensor], max_value: float) -> None:
    """Bring each element of the gradients to between `-max_value` and `max_value`."""
    for gradient in _gradients(parameters):
        _local(gradient).clamp_(-max_value, max_value)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients, of which no rank holds a mere summand any more."""
    found = []
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
            whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
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
    """Offloaded gradients are on the CPU, but their ranks are connected by the cards."""
    assert isinstance(norm, DTensor)
    mesh = norm.device_mesh
    if norm.device.type == mesh.device_type:
        return norm
    # `norm.to` would first reduce it over the ranks.
    return DTensor.from_local(norm.to_local().to(mesh.device_type), mesh, norm.placements)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
