"""Adagrad of the rows of an embedding that were used."""

from __future__ import annotations

from ...._missing import missing, refused

forward = refused(
    "habana_frameworks.torch.hpex.optimizers.SparseAdagrad.forward",
    "What the card's kernel does with indices that come twice is documented nowhere. "
    "Use FusedAdagrad with an embedding of sparse=False.",
)

__getattr__ = missing(__name__)
