"""DistributedDataParallel with the vendor's settings, and the buffers that it does not send."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

DDP_DEFAULTS: dict[str, Any] = {
    "bucket_cap_mb": 230,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": True,
}
"""The vendor's settings of DistributedDataParallel, where the user has none.

With a `bucket_cap_mb` of its own DistributedDataParallel makes the first bucket as large as the
others, so that `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES` (1 MiB), which the vendor's scripts
raise to 200 or 230 MiB, plays no part. Nor are buffers sent before each forward, but before each
evaluation: see `sync_buffers`.
Source: Intel Gaudi documentation, "Distributed Training with PyTorch"; Model-References 1.23
(`torchvision/utils.py`, `yolox/tools/train.py`); torch 2.13 `nn/parallel/distributed.py`.
"""


def wrap(module: Module, settings: dict[str, Any]) -> DistributedDataParallel:
    """The module with its gradients averaged over the ranks in backward.

    Args:
        module: A module on the HPU.
        settings: The user's arguments of DistributedDataParallel.
    """
    defaults = dict(DDP_DEFAULTS)
    if "broadcast_buffers" not in settings:
        # torch 2.13 renamed it; under the old name the first copy is left out too.
        is_renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        defaults["forward_sync_buffers" if is_renamed else "broadcast_buffers"] = False
    wrapped = DistributedDataParallel(module, **(defaults | settings))
    if defaults.get("broadcast_buffers") is False:
        sync_buffers(wrapped)
    return wrapped


def sync_buffers(module: Module) -> None:
    """Give all ranks the buffers of rank 0, such as the running statistics of a batch norm."""
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)


def sync_buffers_before_evaluation(wrapped: DistributedDataParallel) -> None:
    """Have it `sync_buffers` at its first forward of each evaluation, which all ranks must do."""
    is_stale = True
    sync = torch.compiler.disable(sync_buffers)  # type: ignore[no-untyped-call]

    def before_forward(module: Module, args: Any) -> None:
        nonlocal is_stale
        if is_stale and not module.training:
            sync(module)
        is_stale = module.training

    if any(True for _ in wrapped.buffers()):
        wrapped.register_forward_pre_hook(before_forward)
