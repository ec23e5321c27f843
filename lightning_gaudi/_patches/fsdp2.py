"""Lets FSDP2 gather and free the weights of a group by few launches on an HPU.

torch copies each weight's shard into what is sent, and out of what has come, and frees the memory
of each whole weight: on CUDA by operators that take all of them at once, on an HPU by a launch for
each weight (torch 2.13, `distributed/fsdp/_fully_shard`). Here the shards of a group lie one behind
the other in one memory, and so do the whole weights: shards are sent from where they are, whole
weights are copied by one concatenation, and freed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group

from .._core.memory.adjacent import joined
from .apply import require, wrap

_PATCH = "fsdp2-copies"
_IN = "all_gather_copy_in"
_ARGUMENTS = [
    *("all_gather_inputs", "all_gather_output", "inp_split_sizes"),
    *("all_gather_input_numel", "rank"),
]

_operators: list[torch.library.Library] = []


def gather_at_once() -> None:
    """Has FSDP2 do so from now on; what it gathers on other devices, or otherwise, stays."""
    require(_PATCH, _fsdp_param.FSDPParam, "free_unsharded_param", "init_unsharded_param")
    can_override = "allow_override" in signature(torch.library.Library.impl).parameters
    schema: Any = torch.ops.fsdp.all_gather_copy_in.default._schema
    # Other releases of torch have the operator make the output, which stays theirs.
    is_known = [each.name for each in schema.arguments] == _ARGUMENTS
    if can_override and is_known and not _operators:
        # torch registers one for HPU, by which it copies each shard.
        library: Any = torch.library.Library("fsdp", "IMPL")  # type: ignore[no-untyped-call]
        library.impl(_IN, _copy_in, "HPU", allow_override=True)
        _operators.append(library)

    @wrap(_PATCH, _fsdp_collectives, "_get_param_all_gather_inputs")
    def inputs(original: Callable[..., Any], fsdp_params: list[Any]) -> Any:
        if not _are_plain(fsdp_params):
            return original(fsdp_params)
        sizes = [each._sharded_param_data.numel() for each in fsdp_params]
        sent = _in_one_memory(fsdp_params)
        if (dtype := fsdp_params[0].param_dtype) is not None:
            sent = sent.to(dtype)
        return [[part] for part in torch.split(sent, sizes)]

    @wrap(_PATCH, _fsdp_param_group, "foreach_all_gather_copy_out")
    def copy_out(
        original: Callable[..., None], result: Any, fsdp_params: list[Any], group: Any
    ) -> None:
        whole = _whole(result, fsdp_params, group.size())
        if whole is None:
            return original(result, fsdp_params, group)
        if result.all_gather_event is not None:
            torch.get_device_module(whole.device).current_stream().wait_event(
                result.all_gather_event
            )
        if isinstance(result.all_gather_work, dist.Work):
            result.all_gather_work.wait()
        ranks = result.all_gather_output.view(group.size(), -1).unbind()
        sizes = result.all_gather_input_split_sizes
        parts = [each.split(sizes) for each in ranks]
        _fsdp_param.alloc_storage(whole)
        with torch.no_grad(), _unsafe_preserve_version_counter(whole):
            torch.cat([part for ranks in zip(*parts, strict=True) for part in ranks], out=whole)
        return None


def _copy_in(
    shards: list[Any], output: Any, sizes: list[int], num_elements: int, rank: int
) -> tuple[Tensor, Tensor]:
    """Returns this rank's part of what is gathered, filled with its shards, and the whole."""
    own = output.narrow(0, num_elements * rank, num_elements)
    if all(shard.device.type == "hpu" and shard.dtype == own.dtype for shard in shards):
        shards = [shard.reshape(-1) for shard in shards]
        if (together := joined(shards)) is not None:
            return together, output  # sent from where it is
        with torch.no_grad():
            torch.cat(shards, out=own)
        return own, output
    with torch.no_grad():
        torch._foreach_copy_(own.split(sizes), shards)
    return own, output


@torch.inference_mode(False)  # an evaluation may come first, and these shards train later
@torch.no_grad()
def _in_one_memory(fsdp_params: list[Any]) -> Tensor:
    """Returns the shards of a group as one tensor, once they have been moved into one memory."""
    shards = [each._sharded_param_data for each in fsdp_params]
    if (together := joined(shards)) is not None:
        return together
    together = torch.cat(shards)
    parts = torch.split(together, [shard.numel() for shard in shards])
    for each, part in zip(fsdp_params, parts, strict=True):
        each._sharded_param_data = part
        # As torch does where a shard comes from elsewhere (`FSDPParam.reset_sharded_param`).
        length = each.sharded_param._local_tensor.size(0)
        padded = part.view(each.padded_sharded_param_size)
        each.sharded_param._local_tensor = padded.narrow(0, 0, length)
    return together


def _are_plain(fsdp_params: list[Any]) -> bool:
    """Returns whether all shards are gathered as they are, or all cast from one dtype to another.

    They may then share their memory.
    """
    return len({(each.orig_dtype, each.param_dtype) for each in fsdp_params}) == 1 and all(
        type(each._sharded_param_data) is Tensor
        and each.device.type == each._sharded_param_data.device.type == "hpu"
        and each.fsdp_placement.dim == 0
        and each.sharded_state == _fsdp_param.ShardedState.SHARDED
        and not each.offload_to_cpu
        and not hasattr(each._sharded_local_tensor, "fsdp_pre_all_gather")
        for each in fsdp_params
    )


def _whole(result: Any, fsdp_params: list[Any], world_size: int) -> Tensor | None:
    """Returns the memory that all whole weights share; None where each has its own."""
    first = fsdp_params[0]
    if not hasattr(first, "_unsharded_param"):
        if not _may_share(result, fsdp_params):
            return None
        _share(result, fsdp_params, world_size)
    found: Tensor | None = vars(first).get(_WHOLE)
    return found


_WHOLE = "_lightning_gaudi_whole"


def _may_share(result: Any, fsdp_params: list[Any]) -> bool:
    numels = result.param_all_gather_input_numels
    dtypes = {dtype for some in result.param_all_gather_input_dtypes for dtype in some}
    return (
        result.all_gather_output.device.type == "hpu"
        and len(dtypes) == 1
        and all(len(some) == 1 for some in numels)
        and not any(
            each.is_dtensor
            or each.fsdp_placement.dim != 0
            or each.all_gather_outputs
            or hasattr(each._sharded_local_tensor, "fsdp_post_all_gather")
            for each in fsdp_params
        )
    )


@torch.inference_mode(False)  # an evaluation may come first, and these weights train later
@torch.no_grad()
def _share(result: Any, fsdp_params: list[Any], world_size: int) -> None:
    """Makes the whole weights of a group, as FSDP2 does after its first gathering."""
    sizes = [world_size * some[0] for some in result.param_all_gather_input_numels]
    [dtype] = {dtype for some in result.param_all_gather_input_dtypes for dtype in some}
    whole = torch.empty(sum(sizes), dtype=dtype, device=result.all_gather_output.device)
    fsdp_params[0].__dict__[_WHOLE] = whole
    offset = 0
    for each, size in zip(fsdp_params, sizes, strict=True):
        each.all_gather_outputs = [whole.narrow(0, offset, size)]
        # Where shards are padded there is more than the weight.
        weight = whole.as_strided(each._orig_size, each._contiguous_orig_stride, offset)
        each._unsharded_param = nn.Parameter(weight, requires_grad=each.sharded_param.requires_grad)
        offset += size
