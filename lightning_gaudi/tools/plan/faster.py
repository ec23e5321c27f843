"""Finds what would make a program faster: rehearses it with other settings, and ranks these.

Each setting is rehearsed as a plan of its own, so that its counts are as reliable as the program's.
They are ranked by the samples a second that public runs would have, since the time of a step cannot
be compared where batches differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.plan import Planned, plan
from lightning_gaudi.tools.plan.step_times import of_card

_STRATEGIES = ("ddp", "deepspeed_stage_1", "deepspeed_stage_2")
_MORE = 4
"""The largest batch that is tried, in batches of the program; beyond it little is gained."""


@dataclass(frozen=True)
class Way:
    """Describes a way to run a program on a card."""

    change: str
    """What differs from the program; empty for the program itself."""
    samples_per_s: float | None
    """The samples a second of all cards, as public runs were; None without an estimate."""
    why_not: str
    """Why there is no estimate, or why it cannot be run."""


def ways(
    command: Sequence[str],
    first: Planned,
    cards: Sequence[Card],
    tell: Callable[[str], None],
) -> Iterator[Planned]:
    """Rehearses a program with each setting that may make it faster.

    Args:
        command: The program.
        first: The plan of the program as it is.
        cards: The cards that it might run on.
        tell: Is called with what happens next.
    """
    for change, values in _changes(first):
        request = replace(first.request, **values)
        yield from plan(command, request, cards, with_changes=False, tell=tell, change=change)


def _changes(first: Planned) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found, counted, request = first.rehearsed, first.counted, first.request
    assert found is not None
    assert counted is not None
    largest = min(max(first.largest.values(), default=0), _MORE * found.batch_size)
    if found.has_loader and largest > found.batch_size:
        yield f"batch {largest}", {"batch_size": largest}
    if found.has_strategy and counted.flops_of.get("float32", 0) > counted.flops / 2:
        yield "bf16-mixed", {"precision": "bf16-mixed"}
    if counted.is_trained and found.can_checkpoint and request.checkpointing is not False:
        yield "no activation checkpointing", {"checkpointing": False}
    if counted.is_trained and found.has_strategy and found.num_cards > 1:
        for name in _STRATEGIES:
            if name != request.strategy:
                yield f"strategy {name}", {"strategy": name}


def ranked(card: Card, plans: Sequence[Planned]) -> list[Way]:
    """Returns the ways to run a program on a card, the fastest first, those not estimated last."""
    found = [_way(card, each) for each in plans]
    return sorted(found, key=lambda way: -(way.samples_per_s or 0.0))


def _way(card: Card, planned: Planned) -> Way:
    found, counted = planned.rehearsed, planned.counted
    if found is None or counted is None:
        reason = planned.error.splitlines()[0] if planned.error else "it could not be rehearsed"
        return Way(planned.change, None, reason)
    if found.need.whole > card.budget_bytes:
        return Way(planned.change, None, "it does not fit")
    likely = of_card(card, counted, found)
    if likely.seconds is None:
        return Way(planned.change, None, likely.why_not)
    samples = found.batch_size * counted.num_micro_batches * counted.num_replicas
    return Way(planned.change, samples / likely.seconds, "")


def text(cards: Sequence[Card], plans: Sequence[Planned]) -> str:
    """Returns the ranking for each Gaudi; the first plan is that of the program itself."""
    found = [_ranking(card, plans) for card in cards if card.key in GAUDIS]
    return "\n".join(found)


def _ranking(card: Card, plans: Sequence[Planned]) -> str:
    now = _way(card, plans[0]).samples_per_s
    lines = [f"  What would help most on a {card.title}, by samples/s as public runs were:"]
    for way in ranked(card, plans):
        name = way.change or "as it is"
        if way.samples_per_s is None:
            lines.append(f"    {name:32}  no estimate: {way.why_not}")
            continue
        gain = f"{way.samples_per_s / now - 1:+.0%}" if now and way.change else ""
        lines.append(f"    {name:32}{way.samples_per_s:>12.5g}{gain:>8}")
    return "\n".join([*lines, ""])
