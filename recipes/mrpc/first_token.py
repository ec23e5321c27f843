"""BERT's encoder where only the first token of the result is asked for.

Shapes: B pairs of a batch, T tokens, D hidden, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def encode_first(layers: nn.ModuleList, hidden: Tensor, mask: Tensor) -> Tensor:
    """The first token after all layers: what they give, with less to compute.

    The classifier of a pair reads `[CLS]` alone. So in the last layer only this token asks the
    others: they need keys and values, and neither queries nor the feed-forward network, five of six
    parts of the layer's arithmetic. In evaluation the result is that of the whole encoder; in
    training dropout draws as many random numbers as are needed.

    Args:
        layers: those of a `BertEncoder`.
        hidden: [B, T, D], the embeddings.
        mask: [B, 1, 1, T], additive.

    Returns:
        [B, 1, D].
    """
    *others, last = layers
    for layer in others:
        result = layer(hidden, attention_mask=mask)
        hidden = result[0] if isinstance(result, tuple) else result  # a tuple in transformers 4
    attention, first = last.attention.self, hidden[:, :1]
    query, key, value = (
        project(tokens).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)  # BHTD
        for project, tokens in (
            (attention.query, first),
            (attention.key, hidden),
            (attention.value, hidden),
        )
    )
    dropout = attention.dropout.p if attention.training else 0.0
    context = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
    attended = last.attention.output(context.transpose(1, 2).flatten(2), first)
    return last.feed_forward_chunk(attended)  # type: ignore[no-any-return]
