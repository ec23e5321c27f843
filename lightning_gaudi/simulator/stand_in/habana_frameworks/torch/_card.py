"""The card that is simulated."""

from __future__ import annotations

import functools

from lightning_gaudi.simulator.settings import Card, read_card

RELEASE = "1.19.0"
"""The release of the Gaudi software whose interface the stand-in follows."""


@functools.cache
def card() -> Card:
    """The card named by LIGHTNING_GAUDI_SIMULATE_CARD, read once."""
    return read_card()
