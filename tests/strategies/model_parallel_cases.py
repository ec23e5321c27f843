"""Ways to spread the model of `sharded_cases` over cards, as a `configure_model` has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.strategies import sharded_cases
from tests.strategies.sharded_cases import Batch, Case, Stack, ValidatedStack

_TENSORS = {"up": ColwiseParallel(), "down": RowwiseParallel()}
_SEQUENCES = {
    "norm": SequenceParallel(sequence_dim=0),
    "up": ColwiseParallel(input_layouts=Shard(0)),
    "down": RowwiseParallel(output_layouts=Shard(0)),
}


def parallelize(net: nn.Sequential, mesh: DeviceMesh, **settings: Any) -> nn.Sequential:
    """The layers of each block over the tensor-parallel cards, blocks over the data-parallel ones.

    Norms and the head stay whole on the tensor-parallel cards.

    Args:
        net: What `make_net` made.
        mesh: With an axis "data_parallel" and an axis "tensor_parallel".
        settings: Further arguments of `fully_shard`.
    """
    data, tensors = mesh["data_parallel"], mesh["tensor_parallel"]
    if tensors.size() > 1:
        for block in net[:-1]:
            parallelize_module(block, tensors, _TENSORS)
    if data.size() > 1:
        for block in net[:-1]:
            fully_shard(block, mesh=data, **settings)
        fully_shard(net, mesh=data, **settings)
    return net


def parallelize_sequences(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Norms and residuals on parts of the batch: gradients of norms are sums over the cards."""
    tensors = mesh["tensor_parallel"]
    for block in net[:-1]:
        parallelize_module(block, tensors, _SEQUENCES)
    _exchange(net[0], tensors, Replicate(), Shard(0))
    _exchange(net[-1], tensors, Shard(0), Replicate())
    return net


def _exchange(module: nn.Module, mesh: DeviceMesh, before: Placement, after: Placement) -> None:
    """Have the module's input redistributed; it stays a plain tensor, as residuals are."""
    plan = PrepareModuleInput(
        input_layouts=before, desired_input_layouts=after, use_local_output=True
    )
    parallelize_module(module, mesh, plan)


in_bf16 = partial(
    parallelize,
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
"""FSDP2 with its own mixed precision: computes in bf16, holds and reduces in fp32."""

offloaded = partial(parallelize, offload_policy=CPUOffloadPolicy())
"""FSDP2 with shards and the optimizer on the CPU."""


class Parallel(Stack):
    """The model, parallelized as the first argument says."""

    def __init__(self, how: Callable[..., Any] = parallelize, optimizer: str = "adamw") -> None:
        super().__init__(optimizer)
        self.how = how
        self.is_parallel = False

    def configure_model(self) -> None:
        if not self.is_parallel:  # each fit and evaluation calls it
            self.net, self.is_parallel = self.how(self.net, self.device_mesh), True


class ValidatedParallel(Parallel, ValidatedStack):
    """With validation too."""


class _LossInFp32(Stack):
    """Vendor's autocast would round the mean, and so the loss that is compared, to bf16."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        output = self.net(batch[0])
        with torch.autocast("hpu", enabled=False):
            loss = (output.float() - batch[1].float()).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss


class PreciseStack(_LossInFp32):
    """The model with its loss in fp32, whatever the precision."""


class PreciseParallel(_LossInFp32, Parallel):
    """The same, parallelized."""


@dataclass(frozen=True)
class Layout:
    """How many cards share what."""

    data: int
    tensors: int
    how: Callable[..., Any] = parallelize

    def fit(
        self, case: Case, *, kind: type[Parallel] = Parallel, **settings: Any
    ) -> tuple[list[float], Any]:
        """Train in shards; as `Case.fit`."""
        rank = int(os.environ["LOCAL_RANK"])  # as `run_trainers` starts them, on one node
        return case.fit(
            self.data * self.tensors,
            model=kind(self.how, case.optimizer),
            strategy=ModelParallelStrategy(self.data, self.tensors),
            rank=rank // self.tensors,
            num_data_ranks=self.data,
            **settings,
        )


LAYOUTS = {
    2: {
        "fsdp2": Layout(2, 1),
        "fsdp2_offloaded": Layout(2, 1, offloaded),
        "tensors": Layout(1, 2),
        "sequences": Layout(1, 2, parallelize_sequences),
    },
    4: {"fsdp2": Layout(4, 1), "tensors": Layout(1, 4), "fsdp2_of_tensors": Layout(2, 2)},
}
"""By the number of cards. Each must give the losses of DDP in fp32, within 1e-6."""

BF16 = {
    2: {"fsdp2": Layout(2, 1), "policy": Layout(2, 1, in_bf16), "tensors": Layout(1, 2)},
    4: {"fsdp2_of_tensors": Layout(2, 2), "policy_of_tensors": Layout(2, 2, in_bf16)},
}
"""Those that must give the losses of DDP in bf16, within 3e-3."""


def with_large_batches(patch: Any, num_samples: int = 256) -> None:
    """Global batches over which the rounding of single outputs averages out."""
    patch.setattr(sharded_cases, "GLOBAL_BATCH_SIZE", num_samples)
