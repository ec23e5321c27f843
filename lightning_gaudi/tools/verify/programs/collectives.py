"""Programs that meet the rules about collectives; each expects a default process group."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from lightning_gaudi.tools.verify.programs.values import on

Program = Callable[[torch.device], object]


def _ones(device: torch.device, dtype: torch.dtype, length: int = 2) -> torch.Tensor:
    return torch.ones(length, dtype=dtype).to(device)


def _shares(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns an output of 2 elements, and an input of 2 elements for every rank."""
    return _ones(device, dtype), _ones(device, dtype, 2 * dist.get_world_size())


def _reduce(dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM) -> Program:
    return lambda device: dist.all_reduce(_ones(device, dtype), op)


def _reduce_scatter(dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM) -> Program:
    return lambda device: dist.reduce_scatter_tensor(*_shares(device, dtype), op)


def _reduce_scatter_list(device: torch.device) -> object:
    inputs = [_ones(device, torch.int64) for _ in range(dist.get_world_size())]
    return dist.reduce_scatter(_ones(device, torch.int64), inputs)


def _coalesced(device: torch.device) -> None:
    output, source = _shares(device, torch.uint8)
    with dist._coalescing_manager(device=device):  # type: ignore[attr-defined]
        dist.reduce_scatter_tensor(output, source)


def _all_to_all(device: torch.device) -> object:
    each = [_ones(device, torch.uint8, 1) for _ in range(dist.get_world_size())]
    each[0] = _ones(device, torch.uint8, 1 + (len(each) + 1) % 2)
    return dist.all_to_all([torch.empty_like(part) for part in each], each)


def _all_to_all_float8(device: torch.device) -> object:
    source = _ones(device, torch.float32, dist.get_world_size()).to(torch.float8_e4m3fn)
    return dist.all_to_all_single(torch.empty_like(source), source)


def _gather_coalesced(device: torch.device) -> object:
    source = _ones(device, torch.float32)
    return dist.all_gather_coalesced(
        [[torch.empty_like(source)] for _ in range(dist.get_world_size())], [source]
    )


def _premultiplied(device: torch.device) -> object:
    return dist.all_reduce(_ones(device, torch.float32), dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]


def _all_to_all_in_parts(device: torch.device) -> object:
    source = torch.ones(2 * dist.get_world_size()).to(device).to(torch.float8_e5m2)
    splits = [2] * dist.get_world_size()
    return dist.all_to_all_single(torch.empty_like(source), source, splits, splits)


COLLECTIVES: dict[str, Program] = {
    "integers-reduced-in-float32": lambda device: dist.all_reduce(on(device, [2**24 + 1])),
    "float64-reduced-in-float32": _reduce(torch.float64),
    "small-types-reduced-in-float32": _reduce(torch.uint8),
    "collective-int16-refused": _reduce(torch.int16),
    "collective-complex-refused": _reduce(torch.complex64),
    "collective-float8-variants-refused": lambda device: dist.all_reduce(
        torch.ones(2).to(torch.float8_e4m3fnuz).to(device)
    ),
    "collective-unsigned-refused": _reduce(torch.uint16),
    "reduce-scatter-list-types-refused": _reduce_scatter_list,
    "reduce-scatter-int64-refused": _reduce_scatter(torch.int64),
    "coalesced-reduce-scatter-lost": _coalesced,
    "reduce-product-refused": _reduce(torch.float32, ReduceOp.PRODUCT),
    "reduce-bitwise-refused": _reduce(torch.int32, ReduceOp.BOR),
    "reduce-premul-sum-refused": _premultiplied,
    "reduce-average-lazy-refused": _reduce(torch.float32, ReduceOp.AVG),
    "average-of-integers-refused": _reduce_scatter(torch.int32, ReduceOp.AVG),
    "average-of-booleans": _reduce(torch.bool, ReduceOp.AVG),
    "odd-bytes-all-to-all-refused": _all_to_all,
    "split-float8-all-to-all-refused": _all_to_all_in_parts,
    "odd-float8-all-to-all-single-refused": _all_to_all_float8,
    "odd-bytes-padded": lambda device: dist.broadcast(_ones(device, torch.uint8, 3), 0),
    "all-gather-coalesced-refused": _gather_coalesced,
    "recv-from-any-refused": lambda device: dist.recv(_ones(device, torch.float32)),
    "barrier-waits": lambda device: dist.barrier(),
    "work-timeout-ignored": lambda device: dist.all_reduce(
        _ones(device, torch.float32), async_op=True
    ).wait(),
}
