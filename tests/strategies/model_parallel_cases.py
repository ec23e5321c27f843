"""Ways to spread the model of `sharded_cases` over cards, as a `configure_model` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.strategies.sharded_cases import Stack, ValidatedStack

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
    """Norms and residuals on parts of the samples; all weights but the head's are DTensors."""
    tensors = mesh["tensor_parallel"]
    for block in net[:-1]:
        parallelize_module(block, tensors, _SEQUENCES)
    split = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0))
    parallelize_module(net[0], tensors, split)
    return net


class Parallel(Stack):
    """The model, parallelized as the first argument says."""

    def __init__(self, how: Callable[..., Any] = parallelize, optimizer: str = "adamw") -> None:
        super().__init__(optimizer)
        self.how = how

    def configure_model(self) -> None:
        self.net = self.how(self.net, self.device_mesh)


class ValidatedParallel(Parallel, ValidatedStack):
    """With validation too."""
