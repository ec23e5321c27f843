"""The norm of ZeRO's gradients by a few launches, and one look at it in each step.

DeepSpeed (0.19.8, `runtime/zero`) launches a norm for each weight and a dozen operators for each
look at whether the result is a number, for which the host waits once more for each group of
weights. The values and the ways out are DeepSpeed's: a norm that is no number is -1 where it is
that of a group, and infinite where it is that of all.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_gaudi._core.precision.gradient_clipping import power_of_norm
from lightning_gaudi._patches.apply import replace, require, wrap

_PATCH = "deepspeed-norms"
_STAGES = ("stage_1_and_2", "stage3")
_INVALID = "_lightning_gaudi_is_invalid"


def measure_at_once(optimizer: Any) -> None:
    """Has an optimizer of ZeRO measure all gradients of a group at once.

    Args:
        optimizer: DeepSpeed's; nothing is done to one of stage 0.
    """
    stage = type(optimizer).__module__.rpartition(".")[2]
    if stage not in _STAGES:
        return
    require(_PATCH, optimizer, "get_grad_norm_direct", "_model_parallel_all_reduce")
    for name in _STAGES:
        _look_once(importlib.import_module(f"deepspeed.runtime.zero.{name}"))
    original = optimizer.get_grad_norm_direct
    measure = functools.partial(_norm, optimizer, original, stage)
    replace(_PATCH, optimizer, "get_grad_norm_direct", measure)


def _norm(
    optimizer: Any,
    original: Callable[..., Tensor],
    stage: str,
    gradients: Iterable[Tensor],
    params: Any,
    norm_type: float = 2,
) -> Tensor:
    """Returns the norm of a group's gradients over all ranks; -1 if it is no number."""
    gradients, params = [*gradients], [*params]
    is_plain = (
        norm_type == 2
        and optimizer.model_parallel_group is None
        and bool(gradients)
        and all(each.device.type == "hpu" and each.dtype == torch.float32 for each in gradients)
        and not any(hasattr(each, "ds_pipe_replicated") for each in params)
        and not getattr(optimizer, "has_moe_layers", False)
        and not getattr(optimizer, "autoep_folding_spec", None)
    )
    if not is_plain:
        return original(gradients, params, norm_type)
    if stage == "stage3":
        group = optimizer._get_param_partition_group(params[0])
    else:
        group = optimizer.dp_process_group
    held = [each for each in gradients if not getattr(each, "_zero_padding", False)]
    power = power_of_norm(held, 2.0, gradients[0].device)
    dist.all_reduce(power, group=group)
    return power.sqrt_().nan_to_num_(nan=-1.0, posinf=-1.0, neginf=-1.0)


def _look_once(module: Any) -> None:
    """Has a stage look at norms by one wait, whatever the number of its groups."""

    @wrap(_PATCH, module, "combine_grad_norm_groups")
    def combine(original: Callable[..., Tensor], groups: Any, norm_type: float = 2) -> Tensor:
        groups = [*groups]
        if not all(isinstance(each, Tensor) and each.ndim == 0 for each in groups):
            return original(groups, norm_type)
        norms = torch.stack(groups)
        norm: Tensor = torch.linalg.vector_norm(norms.masked_fill(norms < 0, math.inf), norm_type)
        return norm.nan_to_num_(nan=math.inf, posinf=math.inf)

    @wrap(_PATCH, module, "is_invalid_grad_norm")
    def is_invalid(original: Callable[[Any], bool], norm: Any) -> bool:
        if not isinstance(norm, Tensor) or norm.numel() != 1:
            return original(norm)
        # It is asked of the same norm once more for each group.
        if not hasattr(norm, _INVALID):
            value = float(norm)
            setattr(norm, _INVALID, not math.isfinite(value) or value < 0)
        found: bool = getattr(norm, _INVALID)
        return found
