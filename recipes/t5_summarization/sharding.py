"""Cuts T5 into parts: by tensor parallelism in a block (TP), blocks in shards (FSDP2), or both.

`ModelParallelStrategy` makes the mesh and calls the LightningModule's `configure_model`, which
calls `shard` here. Under tensor parallelism each card has some heads of every attention and a part
of every feed-forward layer; embeddings, layer norms and what goes from block to block are whole on
each. Under FSDP2 each card keeps a part of every weight, and gathers a block when it is computed.

Shapes: H heads, F width of the feed-forward layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module

from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from transformers import T5Config, T5ForConditionalGeneration

from recipes.common.errors import UserError
from recipes.t5_summarization.stacks import StaticBlock

_BY_OUTPUT = ("q", "k", "v", "wi", "wi_0", "wi_1")
"""Layers of which each card computes the outputs of its heads."""
_BY_INPUT = ("o", "wo")
"""Layers of which each card takes these as inputs; the sum over the cards is the output."""


def shard(module: LightningModule, model: T5ForConditionalGeneration, mesh: DeviceMesh) -> None:
    """Cuts the model up, in place; doing it again is harmless.

    Args:
        module: holds the model, and everything else that is trained.
        model: on any device; what is cut is moved to that of the mesh, one block at a time.
        mesh: with the axes data_parallel and tensor_parallel.

    Raises:
        UserError: the heads or the feed-forward layers do not divide among the cards.
    """
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        return
    _check_divides(model.config, mesh["tensor_parallel"].size())
    blocks = call_blocks(model)
    if mesh["tensor_parallel"].size() > 1:
        for block in blocks:
            _split_block(block, mesh["tensor_parallel"])
    if mesh["data_parallel"].size() > 1:
        _shard_blocks(module, model, blocks, mesh["data_parallel"])


def call_blocks(model: T5ForConditionalGeneration) -> list[nn.Module]:
    """Has each block called as a whole, as what acts then needs it, and returns them.

    FSDP2 gathers the weights of a block then, and so does ZeRO-3. Under ZeRO, and where blocks are
    recomputed, each is compiled by itself.
    """
    blocks = [block for stack in (model.encoder, model.decoder) for block in stack.block]
    for block in blocks:
        block.__class__ = StaticBlock
    return blocks


@contextmanager
def gathered(stack: nn.Module) -> Iterator[None]:
    """Keeps all blocks of a stack whole on each card, where FSDP2 or ZeRO-3 has cut them up.

    A token of a summary needs every block: gathered for each token, they would take longer to
    transfer than to compute. And it calls parts of blocks, which nothing would gather.
    """
    units = [block for block in stack.block if isinstance(block, FSDPModule)]
    for unit in units:
        unit.unshard()
    try:
        with _gathered_by_zero(stack):
            yield
    finally:
        for unit in units:
            unit.reshard()


def _gathered_by_zero(stack: nn.Module) -> AbstractContextManager[None]:
    states = [(weight, getattr(weight, "ds_status", None)) for weight in stack.parameters()]
    away = [weight for weight, state in states if state and state.name == "NOT_AVAILABLE"]
    if not away:
        return nullcontext()
    found: AbstractContextManager[None] = import_module("deepspeed").zero.GatheredParameters(away)
    return found


def _check_divides(config: T5Config, num_cards: int) -> None:
    for name in ("num_heads", "d_ff"):
        size = getattr(config, name)
        if size % num_cards:
            raise UserError(
                f"tensor_parallel_size={num_cards} does not divide the model's {name}={size}. "
                "Give each card equally many."
            )


def _split_block(block: nn.Module, mesh: DeviceMesh) -> None:
    """Gives each card H / cards heads and F / cards units of a block."""
    styles: dict[str, ParallelStyle] = {}
    for name, part in block.named_modules():
        last = name.rpartition(".")[-1]
        if last in _BY_OUTPUT or last == "relative_attention_bias":
            styles[name] = ColwiseParallel()
        elif last in _BY_INPUT:
            styles[name] = RowwiseParallel()
        if hasattr(part, "n_heads"):
            part.n_heads //= mesh.size()
            part.inner_dim //= mesh.size()
    parallelize_module(block, mesh, styles)


def _shard_blocks(
    module: LightningModule,
    model: T5ForConditionalGeneration,
    blocks: list[nn.Module],
    mesh: DeviceMesh,
) -> None:
    """Cuts each block up, and the rest as one."""
    for stack in (model.encoder, model.decoder):
        # Asked for before and beside its block: see `stacks.bias_of`. Its gradient needs no weight.
        bias = stack.block[0].layer[0].SelfAttention.relative_attention_bias
        fully_shard(bias, mesh=mesh, reshard_after_forward=False)
    for block in blocks:
        # The last block runs backward right after it has run forward.
        fully_shard(block, mesh=mesh, reshard_after_forward=block is not blocks[-1])
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, "summarize")
