"""DistributedDataParallel with the vendor's settings, and the buffers that it does not send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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


class GradientOrder:
    """In which order the gradients of a module come in its first backward.

    After that one DistributedDataParallel has them in its buckets in this order. Where a gradient
    lies in a bucket decides in which order ranks are summed up, and so its last bits with more than
    two of them: a run that goes on has to begin with these buckets.

    Source: torch 2.13, `csrc/distributed/c10d/reducer.cpp` (`autograd_hook`, `rebuild_buckets`).

    Args:
        wrapped: The module, before its first backward.
        names: The order, where it is known.
    """

    def __init__(
        self, wrapped: DistributedDataParallel, names: Sequence[str] | None = None
    ) -> None:
        self.names = None if names is None else [*names]
        """Of the parameters; None until they are known."""
        self._wrapped = wrapped
        self._seen: list[str] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))
            for name, parameter in _trained(wrapped).items()
            if names is None
        ]

    def end_of_backward(self) -> None:
        """Note that a backward has ended."""
        if self._wrapped.require_backward_grad_sync and self._handles:
            is_whole = sorted(self._seen) == sorted(_trained(self._wrapped))
            self.names = self._seen if is_whole else None
            self.release()
        self._seen = []

    def release(self) -> None:
        """Note nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _note(self, name: str, parameter: Any) -> None:
        self._seen.append(name)


def rebuilds_buckets(wrapped: DistributedDataParallel) -> bool:
    """Whether it makes other buckets after its first backward."""
    return not wrapped.find_unused_parameters and not wrapped.static_graph


def begin_with_order(
    wrapped: DistributedDataParallel, names: Sequence[str]
) -> GradientOrder | None:
    """Have it begin with the buckets that it would have after its first backward.

    Args:
        wrapped: It has had none; all ranks do this.
        names: What `GradientOrder` found.

    Returns:
        That order; None if its parameters are others.
    """
    trained = _trained(wrapped)
    if sorted(names) != sorted(trained):
        return None
    number = {id(trained[name]): index for index, name in enumerate(names)}
    ddp: Any = wrapped
    pairs = [*zip(*ddp._build_params_for_reducer(), strict=True)]
    pairs.sort(key=lambda pair: number[id(pair[0])])
    parameters, is_sparse = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ddp.reducer._remove_autograd_hooks()
    shown = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, is_sparse, shown, ddp.static_graph)
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    return GradientOrder(wrapped, names)


def _trained(wrapped: DistributedDataParallel) -> dict[str, Any]:
    """The parameters whose gradients it averages, by name."""
    ignored = wrapped.parameters_to_ignore
    return {
        name: parameter
        for name, parameter in wrapped.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
