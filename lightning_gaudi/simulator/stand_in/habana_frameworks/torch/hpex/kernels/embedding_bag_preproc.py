"""Sorted indices for the sums of embeddings of a card's kernel."""

from __future__ import annotations

from ...._missing import missing, refusing

forward = refusing(
    "hpex.kernels.EmbeddingBagPreproc.forward",
    "It prepares what EmbeddingBag of a card takes. Use torch.nn.functional.embedding_bag.",
)

__getattr__ = missing(__name__)
