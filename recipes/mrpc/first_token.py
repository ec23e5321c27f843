"""Makes a BERT compute only the first token of each pair in its last layer.

Shapes: B rows of a batch, T tokens, K pairs of a row (1 unless packed), D hidden, H heads.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer

from recipes.common.training import gather_tokens

# transformers 4 has its layers return a tuple, 5 a tensor.
_RETURNS_TUPLE = "tuple" in str(inspect.signature(BertLayer.forward).return_annotation).lower()


class FirstTokenLayer(BertLayer):
    """Is a `BertLayer` that computes the first token of each pair.

    Only this one asks the others: they need keys and values, and neither queries nor the
    feed-forward network, five of six parts of the layer's arithmetic. In evaluation the result is
    what `BertLayer` has there; in training dropout draws as many random numbers as are needed.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        first_positions: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        """Computes the tokens.

        Args:
            hidden_states: [B, T, D].
            attention_mask: [B, 1, 1 or T, T], additive.
            first_positions: [B, K], integer: where each pair of a row begins; None for the
                beginning of the row.

        Returns:
            [B, K, D]; a tuple of it in transformers 4.
        """
        attention, mask = self.attention.self, attention_mask
        if first_positions is None:
            first = hidden_states[:, :1]
            mask = None if mask is None else mask[:, :, :1]
        else:
            first = gather_tokens(hidden_states, first_positions)
            mask = None if mask is None else gather_tokens(mask[:, 0], first_positions)[:, None]
        query, key, value = (
            project(tokens).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for project, tokens in (
                (attention.query, first),
                (attention.key, hidden_states),
                (attention.value, hidden_states),
            )
        )  # [B, H, K or T, D / H]
        dropout = attention.dropout.p if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        attended = self.attention.output(context.transpose(1, 2).flatten(2), first)
        result = self.feed_forward_chunk(attended)
        return (result,) if _RETURNS_TUPLE else result


def compute_first_token_alone(encoder: BertEncoder) -> None:
    """Makes the last layer compute only the first tokens, since the classifier reads only `[CLS]`.

    `encode_first_tokens` is the encoder's forward pass then.
    """
    # The class is changed in place, so that weights, their names and hooks stay.
    encoder.layer[-1].__class__ = FirstTokenLayer


def encode_first_tokens(
    encoder: BertEncoder,
    embedded: Tensor,
    mask: Tensor,
    first_positions: Tensor | None = None,
) -> Tensor:
    """Runs an encoder of which `compute_first_token_alone` has changed the last layer.

    Its own forward pass would not hand the positions on, in transformers 4.

    Args:
        encoder: of a BERT.
        embedded: [B, T, D].
        mask: [B, 1, 1 or T, T], additive.
        first_positions: [B, K], integer: where each pair of a row begins; None for one pair a row.

    Returns:
        [B, K, D].
    """
    *layers, last = encoder.layer
    hidden = embedded
    for layer in layers:
        hidden = _tensor(layer(hidden, mask))
    return _tensor(last(hidden, mask, first_positions))


def _tensor(output: Any) -> Tensor:
    found: Tensor = output[0] if _RETURNS_TUPLE else output
    return found
