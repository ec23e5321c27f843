"""Gradient descent of the rows of an embedding that were used."""

from __future__ import annotations

from ...._missing import missing, refused

forward = refused(
    "habana_frameworks.torch.hpex.optimizers.SparseSGD.forward",
    "What the card's kernel does with indices that come twice, and with its moments, is documented "
    "nowhere. Use FusedSGD with an embedding of sparse=False.",
)

__getattr__ = missing(__name__)
