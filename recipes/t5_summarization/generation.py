"""Writes greedy summaries with static shapes: every step of every batch runs the same graph.

The encoder runs once, keys and values are kept in buffers of full length, the position is a tensor
on the device, and nobody asks after each token whether all summaries have ended: what follows an
end becomes padding by masked operations. The result is that of transformers' greedy `generate`,
token for token (a test), which grows by one token a step and waits for the device in each.

Shapes: B rows, S source tokens, T target tokens, D hidden, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import T5ForConditionalGeneration

from recipes.t5_summarization.sharding import gathered
from recipes.t5_summarization.stacks import (
    Pair,
    attend,
    bias_of,
    encode,
    keys_and_values,
    padding_bias,
    source_places,
    target_places,
    to_logits,
)


@torch.no_grad()
def generate(
    model: T5ForConditionalGeneration,
    input_ids: Tensor,
    mask: Tensor,
    num_tokens: int,
    end_step: Callable[[], None] = lambda: None,
    num_steps: int | None = None,
) -> Tensor:
    """Returns the most probable next token, `num_tokens` times.

    Args:
        model: in evaluation mode.
        input_ids: [B, S], integer.
        mask: [B, S], 1 for text and 0 for padding.
        num_tokens: length of the result (T), the end of the text included.
        end_step: called after the encoder and after each token: `vendor.mark_step` in lazy mode.
        num_steps: how many tokens are looked for, the rest being padding; None for all.

    Returns:
        [B, T], int64: the tokens up to the end of each summary, then padding.
    """
    encoded = encode(model, input_ids, source_places(model, mask))
    with gathered(model.decoder):
        return _decode_greedily(model, encoded, mask, num_tokens, end_step, num_steps)


def _decode_greedily(
    model: T5ForConditionalGeneration,
    encoded: Tensor,
    mask: Tensor,
    num_tokens: int,
    end_step: Callable[[], None],
    num_steps: int | None,
) -> Tensor:
    """Returns [B, T] tokens from [B, S, D] and the mask [B, S]."""
    config, rows = model.config, len(mask)
    encoded_bias = padding_bias(mask)
    cross = [keys_and_values(block.layer[1].EncDecAttention, encoded) for block in _blocks(model)]
    past = [tuple(_empty(keys, num_tokens) for keys in pair) for pair in cross]
    bias = bias_of(model.decoder, target_places(model, num_tokens, mask.device))
    position = mask.new_zeros(1, dtype=torch.int64)
    token = torch.full_like(position, config.decoder_start_token_id).repeat(rows, 1)
    tokens = token.new_full((rows, num_tokens), config.pad_token_id)
    has_ended = torch.zeros_like(token, dtype=torch.bool)
    end_step()
    for _ in range(num_tokens if num_steps is None else num_steps):
        hidden = model.decoder.dropout(model.shared(token))
        row = bias.index_select(2, position)
        for block, own, source in zip(_blocks(model), past, cross, strict=True):
            hidden = _step(block, hidden, own, row, source, encoded_bias, position)
        hidden = model.decoder.dropout(model.decoder.final_layer_norm(hidden))
        token = to_logits(model, hidden).argmax(-1)
        token = torch.where(has_ended, config.pad_token_id, token)
        tokens.index_copy_(1, position, token)
        has_ended = has_ended | (token == config.eos_token_id)
        position = position + 1
        end_step()
    return tokens


def _blocks(model: T5ForConditionalGeneration) -> nn.ModuleList:
    blocks: nn.ModuleList = model.decoder.block
    return blocks


def _step(
    block: nn.Module,
    hidden: Tensor,
    past: Pair,
    bias: Tensor,
    source: Pair,
    source_bias: Tensor,
    position: Tensor,
) -> Tensor:
    """Returns one block for one new token; its keys and values are written into `past`."""
    own, other, feed_forward = block.layer
    normed = own.layer_norm(hidden)
    for buffer, new in zip(past, keys_and_values(own.SelfAttention, normed), strict=True):
        buffer.index_copy_(2, position, new)
    hidden = hidden + attend(own.SelfAttention, normed, past, bias)
    normed = other.layer_norm(hidden)
    hidden = hidden + attend(other.EncDecAttention, normed, source, source_bias)
    result: Tensor = feed_forward(hidden)
    return result


def _empty(like: Tensor, num_tokens: int) -> Tensor:
    """Returns a buffer for the target in the dtype of the keys (bfloat16 under autocast)."""
    return like.new_zeros((*like.shape[:2], num_tokens, like.shape[3]))
