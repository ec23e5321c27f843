"""Refuses sums of embeddings in the form in which a card's kernel takes them."""

from __future__ import annotations

from ...._missing import missing, refused

_WHY = (
    "Its valid_count and kernel_mode choose among variants of the card's kernel that are "
    "documented nowhere. Use torch.nn.functional.embedding_bag."
)

forward = refused("habana_frameworks.torch.hpex.kernels.EmbeddingBag.forward", _WHY)
backward = refused("habana_frameworks.torch.hpex.kernels.EmbeddingBag.backward", _WHY)

__getattr__ = missing(__name__)
