"""What a step takes by a card's peaks: an estimate, and no measurement."""

from __future__ import annotations

from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.request import Counted, Rehearsed


def step_seconds(card: Card, found: Rehearsed, counted: Counted) -> tuple[float, float]:
    """What a step takes by the card's peaks, in bf16: at least, and if no operators are fused.

    The arithmetic, what is sent, or the memory that is read and written, whichever takes longer.
    What is held whatever the batch is touched once in each step, and the weights as often as more
    than what fits a card's caches is read between: once a token, where texts are written.
    Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
    """
    arithmetic = counted.flops / card.bf16_flops
    sent = sum(counted.collective_bytes.values())
    links = sent / card.link_bandwidth if card.link_bandwidth else 0.0
    touched = max(found.held_bytes, counted.weight_bytes)
    least = max(arithmetic, links, touched / card.bandwidth)
    return least, max(least, counted.moved_bytes / card.bandwidth)
