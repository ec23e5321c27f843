"""The norm of ZeRO's gradients by one kernel, and one look at it in each step.

DeepSpeed (0.19.8, `runtime/zero`) launches a norm for each weight, a dozen operators for each look
at whether the result is a number, and a dozen for what the gradients of each group are divided by.
Here the ranks send each other their norms, and the host, which has to look anyway, does the rest.
The values and the ways out are DeepSpeed's: a norm that is no number is infinite.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_gaudi._core.precision.gradient_clipping import two_norm
from lightning_gaudi._patches.apply import replace, require, wrap

_PATCH = "deepspeed-norms"
_FEATURES = (
    *("has_moe_layers", "autoep_folding_spec"),
    *("groups_lacking_loss_scale", "sub_groups_lacking_loss_scale"),
)
"""What DeepSpeed measures norms otherwise for: experts, and Muon with a scaled loss."""


def measure_at_once(optimizer: Any) -> None:
    """Has an optimizer of ZeRO measure all gradients at once, and scale them by one factor.

    Args:
        optimizer: DeepSpeed's; nothing is done to one of stage 0.
    """
    stage = stage_of(optimizer)
    if stage is None:
        return
    if stage == 3:
        groups = functools.partial(_groups_of_stage_3, optimizer, optimizer._get_norm_groups)
        replace(_PATCH, optimizer, "_get_norm_groups", groups)
    else:
        norm = functools.partial(_norm_of_stage_2, optimizer, optimizer.scaled_global_norm)
        replace(_PATCH, optimizer, "scaled_global_norm", norm)
    require(_PATCH, optimizer, "averaged_gradients", "clip_grad", "loss_scale")
    scale = functools.partial(_scale, optimizer, optimizer.unscale_and_clip_grads, stage)
    replace(_PATCH, optimizer, "unscale_and_clip_grads", scale)


def scale_no_loss_by_1() -> None:
    """Has DeepSpeed leave a loss alone where its scale is 1, as it is without float16."""
    module = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")

    # Of the class: a scaler is pickled in checkpoints.
    @wrap(_PATCH, module.LossScalerBase, "scale_loss")
    def scale(original: Callable[..., Tensor], scaler: Any, loss: Tensor) -> Tensor:
        # Still another tensor: by its hook the engine knows that it is what computes gradients.
        return loss.view_as(loss) if scaler.loss_scale == 1 else original(scaler, loss)


def stage_of(optimizer: Any) -> int | None:
    """Returns the stage of an optimizer of ZeRO, where 2 stands for 1, too; None for another."""
    name = type(optimizer).__module__
    stages = {"deepspeed.runtime.zero.stage_1_and_2": 2, "deepspeed.runtime.zero.stage3": 3}
    return stages.get(name)


def ranks_of(optimizer: Any, weight: Any) -> Any:
    """Returns the group of ranks that hold the parts of a weight, and of its gradient."""
    return getattr(weight, "ds_process_group", optimizer.dp_process_group)


def _groups_of_stage_3(optimizer: Any, original: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Returns the norm of all gradients, in the place of those of each group."""
    groups = optimizer.fp16_groups
    ranks = {ranks_of(optimizer, each) for group in groups for each in group}
    if optimizer.offload_optimizer or len(ranks) != 1 or not _are_plain(optimizer, groups):
        return original()
    return [_norm(_gradients(optimizer), ranks.pop())]


def _norm_of_stage_2(
    optimizer: Any, original: Callable[[], Tensor], norm_type: float = 2
) -> Tensor:
    groups = optimizer.bit16_groups
    # Otherwise DeepSpeed leaves the norm on the card, where nobody waits for it.
    is_bfloat16 = optimizer.dtype == torch.bfloat16 and not optimizer.check_grad_overflow
    is_read = not is_bfloat16 or optimizer.clip_grad > 0
    if optimizer.cpu_offload or not is_read or not _are_plain(optimizer, groups):
        return original()
    return _norm(_gradients(optimizer), optimizer.dp_process_group)


def _gradients(optimizer: Any) -> list[Tensor]:
    return [each for some in optimizer.averaged_gradients.values() for each in some]


def _are_plain(optimizer: Any, groups: list[list[Any]]) -> bool:
    """Returns whether each element of the gradients is on one rank, and counts once."""
    held = _gradients(optimizer)
    return (
        optimizer.model_parallel_group is None
        and bool(held)
        and all(each.device.type == "hpu" for each in held)
        and not any(hasattr(each, "ds_pipe_replicated") for group in groups for each in group)
        and not any(getattr(optimizer, name, None) for name in _FEATURES)
    )


def _norm(gradients: list[Tensor], ranks: Any) -> Tensor:
    """Returns the norm over all ranks, on the host, which waits for it; infinite if no number."""
    held = [each for each in gradients if not getattr(each, "_zero_padding", False)]
    own = two_norm(held, gradients[0].device)
    norms = own.new_empty(dist.get_world_size(ranks))
    dist.all_gather_into_tensor(norms, own.reshape(1), group=ranks)
    norm: Tensor = torch.linalg.vector_norm(norms.cpu().double()).float()
    return norm if math.isfinite(norm) else norm.new_tensor(math.inf)


def _scale(optimizer: Any, original: Callable[..., None], stage: int, what: Any, norm: Any) -> None:
    """Divides a group's gradients by the scale of the loss and what clips them, if not by 1."""
    held = [optimizer.fp32_partitioned_groups_flat[what].grad] if stage == 3 else [*what]
    on_card = all(isinstance(each, Tensor) and each.device.type == "hpu" for each in held)
    if not on_card or not isinstance(norm, Tensor) or not norm.is_cpu:
        return original(what, norm)
    # In the order and the precision in which DeepSpeed does it on the card.
    divisor = norm.new_tensor(optimizer.loss_scale)
    if optimizer.clip_grad > 0:
        clip = ((norm / divisor) + 1e-6) / optimizer.clip_grad
        divisor = clip.clamp_(min=1.0) * divisor
    if (factor := float(1.0 / divisor)) != 1.0:
        for each in held:
            each.data.mul_(factor)
    return None
