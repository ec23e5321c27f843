"""Runs the forward pass of T5 on the modules of transformers, without waiting for the device.

T5ForConditionalGeneration.forward is not used: on some versions of transformers it reads lengths
from the device in every step, on others it looks at the values of the masks. Here each stack gets
one ready bias, which holds its relative positions and what may be attended to. It equals
transformers' own forward pass, and a test holds it to that.

Attention to the article is torch's function, which is one fused kernel on the HPU. Attention of a
stack to itself is composed of operators in training: the relative positions are learnt, and the
kernel has no gradient for what is added to the scores.

Shapes: B rows, S source tokens, T target tokens, D hidden, H heads, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from transformers import T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

from lightning_gaudi.data import block_diagonal_mask

Pair = tuple[Tensor, Tensor]
"""Keys and values: [B, H, tokens, D / H]."""

_LOWEST = torch.finfo(torch.bfloat16).min  # finite in float32 too


class StaticBlock(T5Block):  # type: ignore[misc]
    """Is a block whose forward pass is the one of this file.

    For what acts when a block is called, as sharding does: `block.__class__ = StaticBlock`.
    """

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor,
        encoded: Tensor | None = None,
        encoded_bias: Tensor | None = None,
    ) -> Tensor:
        """Returns [B, tokens, D] from [B, tokens, D]; see `encode` and `decode`."""
        return _block(self, hidden, bias, encoded, encoded_bias)


class Places(NamedTuple):
    """What the tokens of a stack may attend to, and how far apart they are."""

    mask: Tensor
    """[B or 1, 1, tokens or 1, tokens], float32: 0, or a very negative number: it is hidden."""
    buckets: Tensor
    """[tokens, tokens], int64: which of T5's learnt biases is that of two tokens' distance."""


class Inputs(NamedTuple):
    """What is computed of a batch before any weight is used."""

    source: Places
    target: Places
    source_mask: Tensor
    """[B, 1, T or 1, S], float32: what of the article a token of the summary may attend to."""
    shifted: Tensor
    """[B, T], see `shift_right`."""


def inputs_of(
    model: T5ForConditionalGeneration,
    mask: Tensor,
    labels: Tensor,
    target_ids: Tensor | None = None,
) -> Inputs:
    """Returns what a training step needs beside the article's tokens.

    Args:
        model: any T5.
        mask: [B, S], 1 for text and 0 for padding; of packed rows the number of the article in its
            row, from 1 on.
        labels: [B, T], -100 where there is none.
        target_ids: [B, T] of packed rows: the number of the summary in its row, that of its
            article; 0 for padding.
    """
    return Inputs(
        source_places(model, mask, is_packed=target_ids is not None),
        target_places(model, labels.shape[1], labels.device, target_ids),
        padding_bias(mask) if target_ids is None else block_diagonal_mask(target_ids, key_ids=mask),
        shift_right(model, labels, target_ids),
    )


def source_places(
    model: T5ForConditionalGeneration, mask: Tensor, is_packed: bool = False
) -> Places:
    """Returns those of the encoder; `mask` is as for `inputs_of`.

    The articles of a packed row do not see each other. T5 knows distances alone, and those within
    an article are the same wherever it lies.
    """
    hidden = block_diagonal_mask(mask) if is_packed else padding_bias(mask)
    return Places(hidden, _buckets(model.encoder, mask.shape[1], mask.device))


def target_places(
    model: T5ForConditionalGeneration,
    num_tokens: int,
    device: torch.device,
    sequence_ids: Tensor | None = None,
) -> Places:
    """Returns those of the decoder, which hide the future; with ids [B, T] others, too."""
    position = torch.arange(num_tokens, device=device)
    is_hidden = (position[None, :] > position[:, None])[None, None]
    if sequence_ids is not None:
        # Together, before they are numbers: twice the lowest one would be no number.
        is_other = sequence_ids[:, None, :, None] != sequence_ids[:, None, None, :]
        is_hidden = is_hidden | is_other
    return Places(is_hidden.float() * _LOWEST, _buckets(model.decoder, num_tokens, device))


def encode(
    model: T5ForConditionalGeneration, input_ids: Tensor, places: Places, recompute: bool = False
) -> Tensor:
    """Returns the encoder's hidden states.

    Args:
        model: any T5.
        input_ids: [B, S], integer.
        places: from `source_places` or `inputs_of`.
        recompute: keep only what goes into each block, and compute the rest again in the backward
            pass, with the same dropout and the same autocast.

    Returns:
        [B, S, D].
    """
    bias = bias_of(model.encoder, places)
    return _run(model.encoder, model.shared(input_ids), bias, recompute=recompute)


def decode(
    model: T5ForConditionalGeneration,
    decoder_input_ids: Tensor,
    encoded: Tensor,
    places: Places,
    source_mask: Tensor,
    recompute: bool = False,
) -> Tensor:
    """Returns the logits of every next token.

    Args:
        model: any T5.
        decoder_input_ids: [B, T], integer: the target, shifted right.
        encoded: [B, S, D], from `encode`.
        places: from `target_places` or `inputs_of`.
        source_mask: see `Inputs`.
        recompute: as for `encode`.

    Returns:
        [B, T, V].
    """
    bias = bias_of(model.decoder, places)
    embedded = model.shared(decoder_input_ids)
    return to_logits(model, _run(model.decoder, embedded, bias, encoded, source_mask, recompute))


def shift_right(
    model: T5ForConditionalGeneration, labels: Tensor, target_ids: Tensor | None = None
) -> Tensor:
    """Returns the tokens that the decoder reads to predict `labels`: the one before each.

    Args:
        model: any T5.
        labels: [B, T], -100 where there is none.
        target_ids: [B, T] of packed rows: each summary begins with the start token, and not with
            the end of the one before it.

    Returns:
        [B, T].
    """
    shifted: Tensor = model.prepare_decoder_input_ids_from_labels(labels)
    if target_ids is None:
        return shifted
    is_first = F.pad(target_ids[:, 1:] != target_ids[:, :-1], (1, 0), value=True)
    return shifted.masked_fill(is_first, model.config.decoder_start_token_id)


def bias_of(stack: nn.Module, places: Places) -> Tensor:
    """[1 or B, H, tokens, tokens]: what a stack adds to the scores of its attention to itself."""
    learnt = stack.block[0].layer[0].SelfAttention.relative_attention_bias
    # Asked for its weight, ZeRO-3 gathers that for whoever runs now, as its gradient needs it.
    buckets = places.buckets.to(learnt.weight.device)
    # The module is called, and not its weight used: FSDP2 gathers the weight then.
    bias: Tensor = learnt(buckets).permute(2, 0, 1)[None] + places.mask
    return bias


def _buckets(stack: nn.Module, num_tokens: int, device: torch.device) -> Tensor:
    """[tokens, tokens] of T5's buckets of distances, of which each has a bias for each head."""
    attention = stack.block[0].layer[0].SelfAttention
    position = torch.arange(num_tokens, device=device)
    buckets: Tensor = attention._relative_position_bucket(
        position[None, :] - position[:, None],
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return buckets


def padding_bias(mask: Tensor) -> Tensor:
    """Returns 0 for text and a very negative number for padding, [B, 1, 1, S] float32."""
    return (1.0 - mask[:, None, None, :].float()) * _LOWEST


def keys_and_values(attention: nn.Module, hidden: Tensor) -> Pair:
    """Computes keys and values of [B, tokens, D]."""
    return _split(attention, attention.k(hidden)), _split(attention, attention.v(hidden))


def attend(attention: nn.Module, hidden: Tensor, pair: Pair, bias: Tensor) -> Tensor:
    """Attends, [B, tokens, D]; `bias` is added to the scores, which T5 does not scale."""
    queries = _split(attention, attention.q(hidden))
    dropout = attention.dropout if attention.training else 0.0
    attended = F.scaled_dot_product_attention(
        queries, *pair, attn_mask=bias.to(queries.dtype), dropout_p=dropout, scale=1.0
    )
    output: Tensor = attention.o(attended.transpose(1, 2).flatten(2))
    return output


def _split(attention: nn.Module, projected: Tensor) -> Tensor:
    """Turns [B, tokens, H * size] into [B, H, tokens, size]."""
    return projected.unflatten(-1, (attention.n_heads, attention.key_value_proj_dim)).transpose(
        1, 2
    )


def to_logits(model: T5ForConditionalGeneration, hidden: Tensor) -> Tensor:
    """Returns logits [B, T, V] of [B, T, D]; T5 scales if it shares embeddings, T5 1.1 does not."""
    config = model.config
    # transformers 5 ties the embeddings always and remembers the scale apart.
    if getattr(config, "scale_decoder_outputs", config.tie_word_embeddings):
        hidden = hidden * config.d_model**-0.5
    logits: Tensor = model.lm_head(hidden)
    return logits


def _run(
    stack: nn.Module,
    embedded: Tensor,
    bias: Tensor,
    encoded: Tensor | None = None,
    encoded_bias: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    hidden = stack.dropout(embedded)
    # If weights are bfloat16, too, and not only under autocast, the biases must be bfloat16.
    bias = bias.to(hidden.dtype)
    encoded_bias = None if encoded_bias is None else encoded_bias.to(hidden.dtype)
    for block in stack.block:
        forward = block if isinstance(block, StaticBlock) else partial(_block, block)
        inputs = (hidden, bias, encoded, encoded_bias)
        hidden = (
            checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=True)
            if recompute
            else forward(*inputs)
        )
    result: Tensor = stack.dropout(stack.final_layer_norm(hidden))
    return result


def _block(
    block: nn.Module,
    hidden: Tensor,
    bias: Tensor,
    encoded: Tensor | None,
    encoded_bias: Tensor | None,
) -> Tensor:
    """Runs one block; its own forward pass asks for positions on some versions of transformers."""
    hidden = block.layer[0](hidden, position_bias=bias)[0]
    if encoded is not None:
        assert encoded_bias is not None
        hidden = _attend_to_source(block.layer[1], hidden, encoded, encoded_bias)
    output: Tensor = block.layer[-1](hidden)
    return output


def _attend_to_source(layer: nn.Module, hidden: Tensor, encoded: Tensor, bias: Tensor) -> Tensor:
    attention = layer.EncDecAttention
    pair = keys_and_values(attention, encoded)
    attended = attend(attention, layer.layer_norm(hidden), pair, bias)
    output: Tensor = hidden + layer.dropout(attended)
    return output
