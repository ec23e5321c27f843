"""Divides a language model among cards: by tensor parallelism (TP), by FSDP2, or by both.

`ModelParallelStrategy` makes the mesh and calls the LightningModule's `configure_model`, which
calls `shard` here. Under tensor parallelism each card has some heads of every attention and a part
of every feed-forward layer, as transformers plans it for the model; between layers each card has
all tokens of a row, or some of them (sequence parallelism). Under FSDP2 each card keeps a part of
every weight, and gathers the weights of a block when it computes it. Under Ulysses cards share
only the tokens of rows: each computes all layers, whose weights are sharded over all cards.

Shapes: B rows, T tokens of a row, D hidden, H heads, V vocabulary.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import PreTrainedModel

from recipes.common.errors import UserError

TENSOR, ULYSSES = "tensor", "ulysses"
_TOKENS, _HEADS = 1, 2
"""The dim of tokens in [B, T, D], and of heads in [B, T, H, size of a head]."""
_INSTEAD = (
    "Set tensor_parallel_size=1 and data_parallel_size to the number of cards (FSDP2), or use "
    "trainer.strategy=deepspeed_stage_3."
)


def shard(
    module: LightningModule, model: PreTrainedModel, mesh: DeviceMesh, sequence: str | None
) -> DeviceMesh | None:
    """Divides the model among the cards of the mesh, in place.

    Args:
        module: the LightningModule, which holds the model and everything else that is trained.
        model: the model, on any device, with its adapters if it has any.
        mesh: a mesh with the axes data_parallel and tensor_parallel.
        sequence: tensor or ulysses: how the cards of tensor_parallel share a row's tokens; None if
            each card has all tokens.

    Returns:
        The mesh of the cards that share the tokens of rows, under Ulysses; otherwise None.

    Raises:
        UserError: transformers has no plan for the model, or its heads cannot be divided by the
            number of cards.
    """
    shares, over = mesh["tensor_parallel"], mesh["data_parallel"]
    if shares.size() > 1 and sequence == ULYSSES:
        over = init_device_mesh(mesh.device_type, (mesh.size(),))
    elif shares.size() > 1:
        is_trained = {name: each.requires_grad for name, each in model.named_parameters()}
        _split(model, shares, cuts_tokens=sequence == TENSOR)
        for name, each in model.named_parameters():
            # SequenceParallel replaces parameters by new ones, all of which require gradients.
            each.requires_grad_(is_trained[name])
    if over.size() > 1:
        is_spread = shares.size() == 1 or sequence == ULYSSES
        decoder: Any = model.get_decoder()
        # Block by block, so that a card never holds more than one block that is not sharded.
        for block in decoder.layers:
            if is_spread:
                _take_from_first(block, over)
            fully_shard(block, mesh=over)
        if is_spread:
            _take_from_first(model, over)
        fully_shard(module, mesh=over)
        register_fsdp_forward_method(module, "packed_logits")
    return shares if shares.size() > 1 and sequence == ULYSSES else None


def takes_from_first(mesh: DeviceMesh | None, sequence: str | None) -> bool:
    """Returns whether this rank reads no weights, because `shard` sends it those of the first rank.

    Under tensor parallelism each rank reads the weights itself.
    """
    if mesh is None or (mesh["tensor_parallel"].size() > 1 and sequence != ULYSSES):
        return False
    return dist.get_rank() > 0


@torch.no_grad()
def _take_from_first(part: PreTrainedModel | nn.Module, mesh: DeviceMesh) -> None:
    """Sends the first rank's values of all weights of a part that are not sharded yet.

    On the first rank the weights may be on the host; on the other ranks they are on meta.
    """
    device = torch.device(mesh.device_type)
    for layer in part.modules():
        if any(each.is_meta for each in _own(layer)):
            layer.to_empty(device=device, recurse=False)
    if isinstance(part, PreTrainedModel):
        part.tie_weights()
    for each in [*part.parameters(), *part.buffers()]:
        if not isinstance(each, DTensor):
            dist.broadcast(each.to(device).contiguous(), 0, group=mesh.get_group())


def _own(layer: nn.Module) -> list[Tensor]:
    return [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]


def _split(model: PreTrainedModel, mesh: DeviceMesh, *, cuts_tokens: bool) -> None:
    decoder: Any = model.get_decoder()
    _check_divides(model, mesh.size())
    between = Shard(_TOKENS) if cuts_tokens else Replicate()
    styles = {
        name: style
        for pattern, kind in _plan(model).items()
        for name, layer in decoder.named_modules()
        if name.count(".") == pattern.count(".") and fnmatch.fnmatchcase(name, pattern)
        for name, style in _styles(name, layer, kind, between, model)
    }
    if cuts_tokens:
        styles |= _between_layers(decoder)
    parallelize_module(decoder, mesh, styles)
    if cuts_tokens:  # the output layer takes all tokens, so the last norm's output is gathered
        whole = PrepareModuleOutput(output_layouts=between, desired_output_layouts=Replicate())
        for last in [part for name, part in decoder.named_children() if "norm" in name]:
            parallelize_module(last, mesh, whole)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding.weight is not head.weight:  # sharded separately, tied weights would come apart
        by_words = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        parallelize_module(embedding, mesh, by_words)
        parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))
    elif cuts_tokens:
        raise UserError(
            "model.sequence_parallel=tensor divides the embeddings among cards, and those of "
            f"{type(model).__name__} are its output layer, too. Leave it out, or set "
            "model.sequence_parallel=ulysses."
        )


def _plan(model: PreTrainedModel) -> dict[str, str]:
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None)
    if not plan:
        raise UserError(
            "trainer.strategy has tensor_parallel_size > 1, and transformers has no plan to divide "
            f"{type(model).__name__} among cards. {_INSTEAD}"
        )
    return dict(plan)


def _styles(
    name: str, layer: nn.Module, kind: str, between: Shard | Replicate, model: PreTrainedModel
) -> Iterator[tuple[str, ParallelStyle]]:
    """Yields the parallel styles of a layer and of the adapter beside it.

    If the outputs of the layer are divided (colwise), so are those of the adapter's second matrix.
    If its inputs are divided (rowwise), so are those of the first matrix, whose small result is
    summed over the cards.
    """
    has_adapter = hasattr(layer, "lora_A")
    own = f"{name}.base_layer" if has_adapter else name
    if kind == "colwise":
        yield own, ColwiseParallel()
        if has_adapter:
            yield from ((f"{name}.lora_B.{each}", ColwiseParallel()) for each in layer.lora_B)
    elif kind == "rowwise":
        yield own, RowwiseParallel(output_layouts=between)
        for each in layer.lora_A if has_adapter else ():
            yield f"{name}.lora_A.{each}", RowwiseParallel(output_layouts=between)
            if isinstance(between, Shard):
                yield f"{name}.lora_B.{each}", _on_part(_TOKENS)
    elif kind == "replicated_with_grad_allreduce":  # a norm of each head, and a card has some heads
        yield name, _on_part(_HEADS)
    else:
        raise UserError(
            f"trainer.strategy has tensor_parallel_size > 1, and transformers divides {name} of "
            f"{type(model).__name__} in a way ({kind}) that this recipe does not train with. "
            f"{_INSTEAD}"
        )


def _between_layers(decoder: Any) -> dict[str, ParallelStyle]:
    """Returns the styles of norms, which take some tokens, and of attention, which gathers all."""
    gathered, part = Replicate(), Shard(_TOKENS)
    styles: dict[str, ParallelStyle] = {
        name: _on_part(_TOKENS) for name, _ in decoder.named_children() if "norm" in name
    }
    for name, _ in decoder.layers[0].named_children():
        style: ParallelStyle
        if "norm" in name:
            style = _on_part(_TOKENS)
        elif "attn" in name or "attention" in name:
            style = PrepareModuleInput(  # decoder blocks pass `hidden_states` by name
                input_kwarg_layouts={"hidden_states": part},
                desired_input_kwarg_layouts={"hidden_states": gathered},
                use_local_output=True,
            )
        else:
            style = PrepareModuleInput(
                input_layouts=part, desired_input_layouts=gathered, use_local_output=True
            )
        styles[f"layers.*.{name}"] = style
    return styles


def _on_part(dim: int) -> SequenceParallel:
    """Returns the style of a layer that each card has whole, and computes for a part of a dim.

    The gradients of its weights are summed over the cards.
    """
    return SequenceParallel(sequence_dim=dim, use_local_output=True)


def _check_divides(model: PreTrainedModel, num_cards: int) -> None:
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        size = getattr(config, name, None)
        if size and size % num_cards:
            raise UserError(
                f"trainer.strategy has tensor_parallel_size={num_cards}, which does not divide the "
                f"model's {name}={size}. Set a size that does."
            )
