"""Gradients in the shards of FSDP, clipped by the norm that they have together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Module
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer


def clip_norm(
    model: Module, optimizer: Optimizer, max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale an optimizer's gradients down so that their norm is at most `max_norm`; all ranks call.

    As without shards, it is the norm of the gradients of this optimizer alone, over all its layers.

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
        # Layers wrapped one by one, each of which knows only its own.
        norms = [root.clip_grad_norm_(math.inf, norm_type) for root in roots]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        clip_grads_with_norm_(mine, max_norm, norm)
        return norm


@contextmanager
def _without_gradients(model: Module, mine: set[Tensor]) -> Iterator[None]:
    """Hide the gradients of all but `mine`: FullyShardedDataParallel clips all that it finds."""
    others = [parameter for parameter in model.parameters() if parameter not in mine]
    gradients = [parameter.grad for parameter in others]
    for parameter in others:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(others, gradients, strict=True):
            parameter.grad = gradient
