"""The cards that a plan is made for: what they hold, compute and move at most."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_gaudi.hardware import GAUDIS, Gaudi
from lightning_gaudi.measured_card import MeasuredCard
from lightning_gaudi.simulator.settings import MAX_CARDS

_GIB = 2**30
KEPT_SHARE = 0.1
"""Of a Gaudi's memory, what is kept free by default.

A graph has a workspace for what it computes on the way. Its size is known when the vendor's
compiler has made the graph, and nobody publishes it. The allocator also gives a free chunk that is
up to this share larger than what is asked for without splitting it.
Source: Gaudi PyTorch bridge 1.19.0, backend/synapse_helpers/pool_allocator/
CoalescedStringentPoolAllocator.cpp (DEFRAGMENT_TH). vLLM for Gaudi leaves a tenth of the memory
unused by default, too (gpu_memory_utilization=0.9; docs, "Performance tuning").
"""


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
    has_fused_attention: bool = True
    """Whether attention is one kernel there; where it is not, its scores are in memory."""
    measured: str = ""
    """The file of measurements that memory and speeds are from, as far as it has them."""
    kept_bytes: int = 0
    """What a plan leaves free for what nothing here can count: the workspace of graphs."""

    @property
    def budget_bytes(self) -> int:
        """What may hold what a plan counts."""
        return self.memory_bytes - self.kept_bytes


def _of_gaudi(gaudi: Gaudi) -> Card:
    return Card(
        gaudi.key,
        gaudi.title,
        gaudi.memory_bytes,
        gaudi.bandwidth,
        gaudi.peaks["bfloat16"],
        gaudi.link_bandwidth,
        gaudi.has_fused_attention,
        "",
        int(KEPT_SHARE * gaudi.memory_bytes),
    )


CARDS = {
    card.key: card
    for card in (
        *map(_of_gaudi, GAUDIS.values()),
        Card("a100", "A100 80GB", int(79.15 * _GIB), 2.0e12, 312e12, 0.6e12),
        Card("h100", "H100 80GB", int(79.1 * _GIB), 3.35e12, 989e12, 0.9e12),
    )
}
"""By key.

Source: `lightning_gaudi.hardware`; NVIDIA, "A100 Tensor Core GPU" and "H100 Tensor Core GPU" data
sheets (SXM), and what torch reports of their memory.
"""


def as_measured(cards: Sequence[Card], measured: MeasuredCard | None) -> list[Card]:
    """Gives the cards with what was measured of one of them: its memory, and on a Gaudi its speeds.

    Args:
        cards: The cards.
        measured: What `lightning-gaudi verify` has found; None for nothing.
    """
    if measured is None:
        return [*cards]
    return [_measured(each, measured) if each.key == measured.card else each for each in cards]


def _measured(card: Card, measured: MeasuredCard) -> Card:
    memory = measured.memory.limit_bytes if measured.memory else card.memory_bytes
    return replace(
        card,
        memory_bytes=memory,
        kept_bytes=int(KEPT_SHARE * memory),
        bandwidth=measured.bandwidth() or card.bandwidth,
        bf16_flops=measured.flops("bfloat16") or card.bf16_flops,
        link_bandwidth=measured.link_bandwidth(MAX_CARDS) or card.link_bandwidth,
        measured=str(measured.path),
    )


def with_kept(cards: Sequence[Card], kept_gib: float | None) -> list[Card]:
    """Gives the cards with another amount of memory kept free on each Gaudi; None for the default.

    Raises:
        ValueError: It is negative, or leaves nothing of one of them.
    """
    if kept_gib is None:
        return [*cards]
    kept = int(kept_gib * _GIB)
    changed = [replace(card, kept_bytes=kept) if card.key in GAUDIS else card for card in cards]
    for card in changed:
        if kept < 0 or card.budget_bytes <= 0:
            raise ValueError(
                f"--keep-free {kept_gib:g} GiB is not possible on a {card.title}, which has "
                f"{card.memory_bytes / _GIB:.2f}. Give what its graphs may take beside tensors."
            )
    return changed


def find_cards(names: str) -> list[Card]:
    """Returns the cards of names with commas; all where there are none.

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
