"""A head start for runs of minutes."""

from __future__ import annotations

import torch
from transformers import BertModel

_POSITION_SCALE, _SEGMENT_SCALE = 0.2, 0.3


def attend_to_equal_words(bert: BertModel) -> None:
    """Let each word attend to the same word elsewhere in its sequence, from the first step.

    Whether two segments belong together shows in words that stand in both. BERT finds that out by
    itself, after about a million pairs; before that, next-sentence prediction stays at the rate of
    the majority. A run of minutes sees a tenth of them. So keys begin as the queries, which makes
    equal words attend to each other, and position and segment count less than the word. Nothing is
    kept equal in training.
    """
    embeddings = bert.embeddings
    with torch.no_grad():
        embeddings.position_embeddings.weight.mul_(_POSITION_SCALE)
        embeddings.token_type_embeddings.weight.mul_(_SEGMENT_SCALE)
        for layer in bert.encoder.layer:
            attention = layer.attention.self
            attention.key.weight.copy_(attention.query.weight)
