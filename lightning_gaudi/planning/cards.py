"""The cards that a plan is made for: what they hold, compute and move at most."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True)
class Card:
    """A card, by what its vendor publishes."""

    key: str
    title: str
    memory_bytes: int
    """What a program can have: a little less than what is on the box, where that is known."""
    bandwidth: float
    """Of the device memory, in bytes a second."""
    bf16_flops: float
    """Of products of matrices, in FLOP/s."""
    link_bandwidth: float | None
    """What a card sends to the others of its server and gets from them, in bytes a second."""


CARDS = {
    card.key: card
    for card in (
        Card("gaudi1", "Gaudi 1", 32 * _GIB, 0.9e12, 60e12, 2e12 / 8),
        Card("gaudi2", "Gaudi 2", int(94.62 * _GIB), 2.46e12, 432e12, 4.8e12 / 8),
        Card("gaudi3", "Gaudi 3", 128 * _GIB, 3.67e12, 1835e12, 9.6e12 / 8),
        Card("a100", "A100 80GB", int(79.15 * _GIB), 2.0e12, 312e12, 0.6e12),
        Card("h100", "H100 80GB", int(79.1 * _GIB), 3.35e12, 989e12, 0.9e12),
    )
}
"""By key.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024 (memory, bandwidth, peaks, NICs);
Intel Gaudi documentation, "Memory Stats APIs" (94.62 GiB of a Gaudi 2); NVIDIA, "A100 Tensor Core
GPU" and "H100 Tensor Core GPU" data sheets (SXM), and what torch reports of their memory.
"""


def find_cards(names: str) -> list[Card]:
    """The cards of names with commas; all where there are none.

    Raises:
        ValueError: There is no such card; names the nearest.
    """
    found = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if name not in CARDS:
            close = difflib.get_close_matches(name, CARDS, 1, 0.4)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"There is no card {name!r}. {hint}There are {', '.join(CARDS)}.")
        found.append(CARDS[name])
    return found or [*CARDS.values()]
