"""Lists the cards that a plan is made for: what they hold, compute and move at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_gaudi._core.wording import did_you_mean
from lightning_gaudi.hardware import GAUDIS, Gaudi
from lightning_gaudi.measured_card import VARIABLE, CardFileError, MeasuredCard
from lightning_gaudi.simulator.settings import MAX_CARDS

_GIB = 2**30
KEPT_SHARE = 0.1
"""The share of a Gaudi's memory that is kept free by default.

A graph has a workspace for intermediate results. Its size is known only when the vendor's compiler
has made the graph, and nobody publishes it. Also, the allocator gives a free chunk without
splitting it if it is larger than the request by no more than this share.
Source: Gaudi PyTorch bridge 1.19.0, backend/synapse_helpers/pool_allocator/
CoalescedStringentPoolAllocator.cpp (DEFRAGMENT_TH). vLLM for Gaudi leaves a tenth of the memory
unused by default, too (gpu_memory_utilization=0.9; docs, "Performance tuning").
"""


@dataclass(frozen=True)
class Card:
    """Describes a card by what its vendor publishes."""

    key: str
    title: str
    memory_bytes: int
    """The memory that a program can have, which is a little less than the nominal memory."""
    bandwidth: float
    """The bandwidth of the device memory, in bytes a second."""
    bf16_flops: float
    """The peak of products of matrices in bfloat16, in FLOP/s."""
    link_bandwidth: float | None
    """The bytes a second that a card sends to the others of its server and receives, together."""
    has_fused_attention: bool = True
    """Whether attention is one kernel there; where it is not, its scores are in memory."""
    measured: MeasuredCard | None = None
    """What was measured of such a card, where memory and speeds are from, as far as it has them."""
    kept_bytes: int = 0
    """The memory that a plan leaves free for the workspace of graphs, which it cannot count."""

    @property
    def budget_bytes(self) -> int:
        """The memory that is left for what a plan counts."""
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
        kept_bytes=int(KEPT_SHARE * gaudi.memory_bytes),
    )


CARDS = {
    card.key: card
    for card in (
        *map(_of_gaudi, GAUDIS.values()),
        Card("a100", "A100 80GB", int(79.15 * _GIB), 2.0e12, 312e12, 0.6e12),
        Card("h100", "H100 80GB", int(79.1 * _GIB), 3.35e12, 989e12, 0.9e12),
    )
}
"""The cards by key.

Source: `lightning_gaudi.hardware`; NVIDIA, "A100 Tensor Core GPU" and "H100 Tensor Core GPU" data
sheets (SXM), and what torch reports of their memory.
"""


def as_measured(cards: Sequence[Card], measured: MeasuredCard | None) -> list[Card]:
    """Returns the cards with the memory and speeds that were measured of one of them.

    Args:
        cards: The cards.
        measured: What `lightning-gaudi verify` has found; None for nothing.

    Raises:
        CardFileError: It was measured on none of them.
    """
    if measured is None:
        return [*cards]
    if all(each.key != measured.card for each in cards):
        raise CardFileError(
            f"{measured.path} was measured on a {GAUDIS[measured.card].title}, for which this is "
            f"no plan. Plan for it, too (--cards {measured.card}), or unset {VARIABLE}."
        )
    return [_measured(each, measured) if each.key == measured.card else each for each in cards]


def _measured(card: Card, measured: MeasuredCard) -> Card:
    memory = measured.memory.limit_bytes if measured.memory else card.memory_bytes
    return replace(
        card,
        memory_bytes=memory,
        kept_bytes=int(KEPT_SHARE * memory),
        bandwidth=measured.bandwidth() or card.bandwidth,
        bf16_flops=measured.flops("bfloat16") or card.bf16_flops,
        # What was measured is sent, and as much comes in the meantime.
        link_bandwidth=2 * (measured.link_bandwidth(MAX_CARDS) or 0.0) or card.link_bandwidth,
        measured=measured,
    )


def with_kept(cards: Sequence[Card], kept_gib: float | None) -> list[Card]:
    """Returns the cards with another amount of memory kept free on each Gaudi.

    Args:
        cards: The cards.
        kept_gib: The amount in GiB; None for the default.

    Raises:
        ValueError: It is negative, or leaves nothing of a card.
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
    """Returns the cards that a text names, with commas between them; all cards for an empty text.

    Raises:
        ValueError: There is no such card; the message names the nearest.
    """
    found = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if name not in CARDS:
            hint = did_you_mean(name, CARDS, 0.4)
            raise ValueError(f"There is no card {name!r}.{hint} There are {', '.join(CARDS)}.")
        found.append(CARDS[name])
    return found or [*CARDS.values()]
