"""Reads which card is simulated."""

from __future__ import annotations

import functools

from lightning_gaudi.simulator.settings import Card, read_card


@functools.cache
def card() -> Card:
    """Returns the card named by LIGHTNING_GAUDI_SIMULATE_CARD, read once."""
    return read_card()
