"""A language model in parts: within a block (TP), blocks in shards (FSDP2), or both.

`ModelParallelStrategy` makes the mesh and calls the LightningModule's `configure_model`, which
calls `shard` here. Under tensor parallelism each card has some heads of every attention and a part
of every feed-forward layer, as transformers' own plan of the model says; between layers each has
all tokens of a row, or some of them (sequence parallelism). Under FSDP2 each card keeps a part of
every weight, and gathers a block when it is computed. Where cards share the tokens of rows alone
(Ulysses), each has all layers, in shards over all cards.

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
"""Dims of [B, T, D] and of [B, T, H, D of a head]."""
_INSTEAD = (
    "Set tensor_parallel_size=1 and data_parallel_size to the number of cards (FSDP2), or use "
    "trainer.strategy=deepspeed_stage_3."
)


def shard(
    module: LightningModule, model: PreTrainedModel, mesh: DeviceMesh, sequence: str | None
) -> DeviceMesh | None:
    """Cuts the model up, in place.

    Args:
        module: holds the model, and everything else that is trained.
        model: on any device, with its adapters if it has any.
        mesh: with the axes data_parallel and tensor_parallel.
        sequence: tensor or ulysses, what the cards of tensor_parallel do with a row's tokens; None
            if each has all.

    Returns:
        Those cards, if they share the tokens of rows and nothing else.

    Raises:
        UserError: there is no plan for the model, or its heads do not divide among the cards.
    """
    shares, over = mesh["tensor_parallel"], mesh["data_parallel"]
    if shares.size() > 1 and sequence == ULYSSES:
        over = init_device_mesh(mesh.device_type, (mesh.size(),))
    elif shares.size() > 1:
        is_trained = {name: each.requires_grad for name, each in model.named_parameters()}
        _split(model, shares, cuts_tokens=sequence == TENSOR)
        for name, each in model.named_parameters():
            each.requires_grad_(is_trained[name])  # SequenceParallel trains all that it is given
    if over.size() > 1:
        is_spread = shares.size() == 1 or sequence == ULYSSES
        decoder: Any = model.get_decoder()
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
    """Returns whether this rank needs no weights, as `shard` gives it its part of the first one's.

    Of layers that are cut up within a block, each rank has its own.
    """
    if mesh is None or (mesh["tensor_parallel"].size() > 1 and sequence != ULYSSES):
        return False
    return dist.get_rank() > 0


@torch.no_grad()
def _take_from_first(part: PreTrainedModel | nn.Module, mesh: DeviceMesh) -> None:
    """Gives the layers of a part that are whole still the values of the first rank.

    There they may be on the host, elsewhere on meta: one block at a time is whole on a card.
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
    if cuts_tokens:  # what makes logits takes all
        whole = PrepareModuleOutput(output_layouts=between, desired_output_layouts=Replicate())
        for last in [part for name, part in decoder.named_children() if "norm" in name]:
            parallelize_module(last, mesh, whole)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding.weight is not head.weight:  # in parts the two would no longer be one
        by_words = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        parallelize_module(embedding, mesh, by_words)
        parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))
    elif cuts_tokens:
        raise UserError(
            f"model.sequence_parallel=tensor cuts the embeddings of {type(model).__name__} up, and "
            "these are its output layer, too. Leave it out, or set model.sequence_parallel=ulysses."
        )


def _plan(model: PreTrainedModel) -> dict[str, str]:
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None)
    if not plan:
        raise UserError(
            f"trainer.strategy has tensor_parallel_size > 1, and transformers has no plan for "
            f"{type(model).__name__} in parts. {_INSTEAD}"
        )
    return dict(plan)


def _styles(
    name: str, layer: nn.Module, kind: str, between: Shard | Replicate, model: PreTrainedModel
) -> Iterator[tuple[str, ParallelStyle]]:
    """Yields how a layer is cut, and the adapter beside it: its result is cut as the layer's is.

    Of a layer whose outputs cards share, so are the adapter's; of one whose inputs they share, the
    adapter adds up what each has of its few numbers.
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
    elif kind == "replicated_with_grad_allreduce":  # a norm of heads, of which each card has some
        yield name, _on_part(_HEADS)
    else:
        raise UserError(
            f"trainer.strategy has tensor_parallel_size > 1, and transformers cuts {name} of "
            f"{type(model).__name__} in a way ({kind}) that this recipe does not train with. "
            f"{_INSTEAD}"
        )


def _between_layers(decoder: Any) -> dict[str, ParallelStyle]:
    """Returns styles of what lies between layers: norms of some tokens; attention takes all."""
    gathered, part = Replicate(), Shard(_TOKENS)
    styles: dict[str, ParallelStyle] = {
        name: _on_part(_TOKENS) for name, _ in decoder.named_children() if "norm" in name
    }
    for name, _ in decoder.layers[0].named_children():
        style: ParallelStyle
        if "norm" in name:
            style = _on_part(_TOKENS)
        elif "attn" in name or "attention" in name:
            style = PrepareModuleInput(  # it is given its input by name
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
    """A layer that each card has whole and computes for some: its gradients are added up."""
    return SequenceParallel(sequence_dim=dim, use_local_output=True)


def _check_divides(model: PreTrainedModel, num_cards: int) -> None:
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        size = getattr(config, name, None)
        if size and size % num_cards:
            raise UserError(
                f"trainer.strategy has tensor_parallel_size={num_cards}, which does not divide the "
                f"model's {name}={size}. Give each card equally many."
            )
