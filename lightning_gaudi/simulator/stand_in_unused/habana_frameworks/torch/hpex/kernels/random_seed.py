"""Refuses to seed a card's own generator."""

from __future__ import annotations

from ...._missing import missing, refused

random_seed = refused(
    "habana_frameworks.torch.hpex.kernels.RandomSeed.random_seed",
    "It seeds a register of the card's cores, whose numbers are the silicon's. "
    "Use torch.hpu.manual_seed.",
)

__getattr__ = missing(__name__)
