"""The last layer of a BERT of which only the first token is read.

Shapes: B pairs of a batch, T tokens, D hidden, H heads.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer

# transformers 4 has its layers return a tuple, 5 a tensor.
_RETURNS_TUPLE = "tuple" in str(inspect.signature(BertLayer.forward).return_annotation).lower()


class FirstTokenLayer(BertLayer):
    """A `BertLayer` that computes the first of its tokens.

    Only this one asks the others: they need keys and values, and neither queries nor the
    feed-forward network, five of six parts of the layer's arithmetic. In evaluation the result is
    what `BertLayer` has there; in training dropout draws as many random numbers as are needed.
    """

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Any:
        """Computes the token.

        Args:
            hidden_states: [B, T, D].
            attention_mask: [B, 1, 1 or T, T], additive.

        Returns:
            [B, 1, D]; a tuple of it in transformers 4.
        """
        attention, first = self.attention.self, hidden_states[:, :1]
        query, key, value = (
            project(tokens).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for project, tokens in (
                (attention.query, first),
                (attention.key, hidden_states),
                (attention.value, hidden_states),
            )
        )  # [B, H, 1 or T, D / H]
        dropout = attention.dropout.p if self.training else 0.0
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        attended = self.attention.output(context.transpose(1, 2).flatten(2), first)
        result = self.feed_forward_chunk(attended)
        return (result,) if _RETURNS_TUPLE else result


def compute_first_token_alone(encoder: BertEncoder) -> None:
    """Makes the encoder return [B, 1, D]: the classifier of a pair reads `[CLS]` alone."""
    # Its weights, their names and its hooks stay.
    encoder.layer[-1].__class__ = FirstTokenLayer
