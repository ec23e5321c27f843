"""Copies ZeRO's gradients by a launch for each bucket, and not for each weight.

DeepSpeed (0.19.8, `runtime/zero`) copies each gradient into a bucket as it comes, and each part of
what was reduced to where the optimizer finds it: on a card a launch each. Here a bucket's gradients
wait until it is reduced, and are copied by one concatenation. What is sent, when, and where it ends
up are DeepSpeed's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_gaudi._core.memory.adjacent import joined
from lightning_gaudi._patches.apply import replace, require

from .norms import ranks_of, stage_of

_PATCH = "deepspeed-copies"


def copy_at_once(optimizer: Any) -> None:
    """Has an optimizer of ZeRO copy the gradients of a bucket together, where it is on the card.

    Args:
        optimizer: DeepSpeed's; nothing is done to one of stage 0.
    """
    stage = stage_of(optimizer)
    if stage == 2 and not optimizer.cpu_offload and _is_plain(optimizer):
        _Buckets(optimizer)
    elif stage == 3 and not optimizer.offload_optimizer and _is_plain(optimizer):
        original = optimizer.partition_grads
        replace(_PATCH, optimizer, "partition_grads", functools.partial(_part, optimizer, original))


def _is_plain(optimizer: Any) -> bool:
    names = ("zenflow", "has_moe_layers", "autoep_folding_spec", "_offload_gradient_safety_enabled")
    is_muon = "muon" in type(optimizer.optimizer).__name__.lower()
    return not is_muon and not any(getattr(optimizer, name, None) for name in names)


class _Buckets:
    """Keeps the gradients of the buckets of ZeRO-1 and 2 until they are reduced."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._waiting: dict[torch.dtype, list[Tensor]] = {}
        """Of each bucket, by the dtype in which it is sent: the last of its gradients."""
        self._reduced: list[Tensor] | None = None
        """While a bucket is reduced, the gradients of it that this rank needs."""
        if not optimizer.contiguous_gradients:
            return
        require(_PATCH, optimizer, "ipg_buckets", "grads_in_partition", "params_in_partition")
        self._originals: dict[str, Callable[..., Any]] = {}
        for name, method in {
            "reduce_independent_p_g_buckets_and_remove_grads": self._add,
            "reduce_ipg_grads": self._reduce,
            "allreduce_and_scatter": self._send,
            "copy_grads_in_partition": self._keep,
        }.items():
            self._originals[name] = getattr(optimizer, name)
            replace(_PATCH, optimizer, name, method)

    def _add(self, weight: Any, group_index: int) -> None:
        """Adds a gradient to a bucket."""
        optimizer = self._optimizer
        dtype = optimizer.get_param_comm_dtype(weight)
        bucket, gradient = (
            optimizer.ipg_buckets[dtype],
            optimizer.get_gradient_for_reduction(weight),
        )
        size = weight.numel()
        if not self._takes(weight, gradient, bucket):
            self._fill(dtype)
            add = self._originals["reduce_independent_p_g_buckets_and_remove_grads"]
            add(weight, group_index)
            return
        if bucket.elements + size > optimizer.reduce_bucket_size:
            optimizer.reduce_ipg_grads(comm_dtype=dtype)
            if optimizer.overlap_comm:
                bucket.index = 1 - bucket.index
        number = optimizer.get_param_id(weight)
        assert not optimizer.params_already_reduced[number]
        self._waiting.setdefault(dtype, []).append(gradient)
        bucket.elements += size
        bucket.grads.append(gradient)
        bucket.params.append((group_index, weight.param_idx_in_group, number))

    def _takes(self, weight: Any, gradient: Tensor | None, bucket: Any) -> bool:
        return (
            gradient is not None
            and gradient.device.type == "hpu"
            and gradient.dtype == bucket.buffer[bucket.index].dtype
            and gradient.is_contiguous()
            and getattr(weight, "ds_grad_is_ready", True)
            and 0 < weight.numel() <= self._optimizer.reduce_bucket_size
        )

    def _fill(self, dtype: torch.dtype) -> None:
        """Copies the gradients that wait for a bucket to its end."""
        if not (waiting := self._waiting.pop(dtype, [])):
            return
        bucket, size = self._optimizer.ipg_buckets[dtype], sum(each.numel() for each in waiting)
        buffer = bucket.buffer[bucket.index].narrow(0, bucket.elements - size, size)
        _concatenate(waiting, buffer)

    def _reduce(self, comm_dtype: torch.dtype | None = None) -> None:
        """Fills a bucket, or all of them, and has DeepSpeed reduce it."""
        for dtype in [*self._waiting] if comm_dtype is None else [comm_dtype]:
            self._fill(dtype)
        self._reduced = []
        try:
            self._originals["reduce_ipg_grads"](comm_dtype=comm_dtype)
            kept = self._reduced
        finally:
            self._reduced = None
        self._copy_out(kept)

    def _send(self, bucket: list[Any], dtype: torch.dtype, **options: Any) -> None:
        """Adds up a bucket over the ranks where it is, if it is whole and stays as it is."""
        optimizer = self._optimizer
        parts = [each[1] for each in bucket]
        outputs = [each for _, _, *rest in bucket for each in rest]
        size = sum(part.numel() for part in parts)
        is_whole = (
            all(each is None for each in outputs)
            and not options.get("divide", True)
            and dtype == parts[0].dtype
            and getattr(optimizer, "sequence_parallel_size", 1) == 1
            and size <= options.get("numel_per_bucket", 0)
        )
        whole = joined(parts) if is_whole else None
        if whole is None:
            self._originals["allreduce_and_scatter"](bucket, dtype, **options)
            return
        dist.all_reduce(whole, group=options.get("process_group") or optimizer.dp_process_group)

    def _keep(self, weight: Any, *group_index: int) -> None:
        """Notes a weight whose reduced gradient this rank needs, until its bucket is through."""
        optimizer = self._optimizer
        gradient = optimizer.get_gradient_for_reduction(weight)
        # Releases from 0.19.5 on may add it up in float32 where it is for good.
        is_compact = group_index and optimizer._use_compact_grad_partition_buffer(*group_index)
        if self._reduced is None or is_compact or gradient.dtype != optimizer.dtype:
            self._originals["copy_grads_in_partition"](weight, *group_index)
        else:
            self._reduced.append(gradient)

    def _copy_out(self, gradients: list[Tensor]) -> None:
        """Copies what this rank needs of a bucket, which will be filled anew."""
        if not gradients:
            return
        optimizer = self._optimizer
        if optimizer.grads_in_partition is None:
            weights = [each for group in optimizer.params_in_partition for each in group]
            size = sum(each.numel() for each in weights)
            optimizer.grads_in_partition = gradients[0].new_empty(size)
            optimizer.grads_in_partition_offset = 0
        size = sum(each.numel() for each in gradients)
        offset = optimizer.grads_in_partition_offset
        _concatenate(gradients, optimizer.grads_in_partition.narrow(0, offset, size))
        optimizer.grads_in_partition_offset += size


def _concatenate(gradients: list[Tensor], buffer: Tensor) -> None:
    """Copies gradients into a buffer, where they are from then on."""
    torch.cat([each.data.reshape(-1) for each in gradients], out=buffer)
    parts: Any = torch.split(buffer, [each.numel() for each in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.data = part.view_as(gradient)


def _part(
    optimizer: Any, original: Callable[..., Any], weights: list[Any], parts: list[Tensor]
) -> Any:
    """Copies or adds the reduced parts of gradients to those of ZeRO-3, and frees the gradients."""
    held = optimizer._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
    pairs = []
    for weight, part in zip(weights, parts, strict=True):
        rank = dist.get_rank(ranks_of(optimizer, weight))
        # The last ranks may have nothing of a small weight.
        if weight.partition_numel() * rank < weight.ds_numel:
            pairs.append((held[weight.ds_id].narrow(0, 0, part.numel()), part))
    buffers = [buffer for buffer, _ in pairs]
    memories = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    if len(memories) != 1 or not all(_fits(*pair) for pair in pairs):
        return original(weights, parts)
    if optimizer.micro_step_id != 0:
        torch._foreach_add_(buffers, [part.view_as(buffer) for buffer, part in pairs])
    else:
        for run in _runs(pairs):
            size = sum(buffer.numel() for buffer, _ in run)
            torch.cat([part for _, part in run], out=run[0][0].as_strided((size,), (1,)))
    for weight in weights:
        if weight.grad is not None:
            # It may be of another stream than this one, which has read it.
            weight.grad.record_stream(torch.get_device_module("hpu").current_stream())
        weight.grad = None
    return buffers


def _fits(buffer: Tensor, part: Tensor) -> bool:
    return buffer.device.type == part.device.type == "hpu" and buffer.dtype == part.dtype


def _runs(pairs: list[tuple[Tensor, Tensor]]) -> list[list[tuple[Tensor, Tensor]]]:
    """Returns the pairs in runs whose first members lie one behind the other."""
    pairs = sorted(pairs, key=lambda pair: pair[0].storage_offset())
    covered = [0]
    for buffer, _ in pairs:
        covered.append(covered[-1] + buffer.numel())
    # Where nothing lies between them, each begins as far behind the first as those before it reach.
    gaps = [buffer.storage_offset() - end for (buffer, _), end in zip(pairs, covered, strict=False)]
    runs = groupby(zip(gaps, pairs, strict=True), key=lambda each: each[0])
    return [[pair for _, pair in run] for _, run in runs]
