"""Refuses to sort indices for a card's sums of embeddings."""

from __future__ import annotations

from ...._missing import missing, refused

forward = refused(
    "habana_frameworks.torch.hpex.kernels.EmbeddingBagPreproc.forward",
    "It prepares what EmbeddingBag of a card takes. Use torch.nn.functional.embedding_bag.",
)

__getattr__ = missing(__name__)
