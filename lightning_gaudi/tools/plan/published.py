"""What was published of a run, beside what its plan says.

A program declares that it is a published run by a callback of its Trainer that has a method
`published_run`. The figures are the program's; none are known here. What a
step takes by a card's peaks stands beside them: an estimate, and no measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_gaudi.published import Figure, PublishedRun
from lightning_gaudi.tools.plan.cards import CARDS, Card
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request
from lightning_gaudi.tools.plan.step_times import as_public_runs


@dataclass(frozen=True)
class Beside:
    """A published figure, and what the plan says of it."""

    figure: Figure
    card: str
    """The key of the card, or "" where it is none that plans are made for."""
    least: float | None
    """The figure as it would be if a step took what it takes at least; None if not estimated."""
    unfused: float | None
    """The same by what operators read and write."""
    why_not: str
    """Why it is not estimated."""
    likely: tuple[float, float] | None = None
    """The range in which it would be if a step took what it takes in public runs."""
    why_not_likely: str = ""
    """Why there is no such range."""

    @property
    def errors(self) -> tuple[float, float] | None:
        """Of both, as shares of the published value: 0.1 is ten percent more."""
        if self.least is None or self.unfused is None:
            return None
        return self.least / self.figure.value - 1, self.unfused / self.figure.value - 1


@dataclass(frozen=True)
class Room:
    """Whether a batch fits a card, as published and as planned."""

    hardware: str
    batch_size: int
    did_fit: bool
    """As published: it ran, or there was no room."""
    largest: int | None
    """The largest batch of the plan; None where that card is not planned for."""

    @property
    def agrees(self) -> bool | None:
        """Whether the plan says the same; None where it says nothing."""
        return None if self.largest is None else (self.batch_size <= self.largest) == self.did_fit


def declared(callbacks: Iterable[Any]) -> PublishedRun | None:
    """Returns the run that a Trainer's callbacks say it is, if one does."""
    for each in callbacks:
        if hasattr(each, "published_run"):
            run: PublishedRun = each.published_run()
            return run
    return None


def beside(run: PublishedRun, request: Request, found: Rehearsed, counted: Counted) -> list[Beside]:
    """Returns each figure of a run, with its estimate, or with why there is none."""
    return [_beside(each, run, request, found, counted) for each in run.figures]


def rooms(run: PublishedRun, largest: Mapping[str, int]) -> list[Room]:
    """Returns each batch that is known to have fitted a card, or not to."""
    fitted = {(each.hardware, each.batch_size): True for each in run.figures}
    refused = {(each.hardware, each.batch_size): False for each in run.no_room}
    found = []
    for (hardware, batch_size), did_fit in {**refused, **fitted}.items():
        card = _card(hardware)
        planned = None if card is None else largest.get(card.key)
        found.append(Room(hardware, batch_size, did_fit, planned))
    return found


def _beside(
    figure: Figure, run: PublishedRun, request: Request, found: Rehearsed, counted: Counted
) -> Beside:
    card = _card(figure.hardware)
    key = "" if card is None else card.key
    if card is None:
        why_not = "no such card is known"
    elif found.has_fused_attention and not card.has_fused_attention:
        why_not = f"its attention is not fused there: plan with --cards {card.key}"
    elif request.devices != run.num_cards:
        why_not = f"of {run.num_cards} cards: plan with --devices {run.num_cards}"
    elif found.batch_size != figure.batch_size:
        why_not = f"of batch {figure.batch_size}: plan with --batch-size {figure.batch_size}"
    else:
        seconds = step_seconds(card, found, counted)
        least, unfused = (_as_figure(figure.name, each, run, found, counted) for each in seconds)
        why_not = "" if least is not None else _why_not(figure.name)
        as_runs = as_public_runs(card.key, counted, found.num_cards)
        if least is None or as_runs.low is None or as_runs.high is None:
            return Beside(figure, key, least, unfused, why_not, why_not_likely=as_runs.why_not)
        ends = [
            _as_figure(figure.name, each, run, found, counted) or 0.0
            for each in (as_runs.low, as_runs.high)
        ]
        return Beside(figure, key, least, unfused, why_not, (min(ends), max(ends)))
    return Beside(figure, key, None, None, why_not)


def _as_figure(
    name: str, seconds: float, run: PublishedRun, found: Rehearsed, counted: Counted
) -> float | None:
    """Returns what a figure is if a step takes so long; None where that does not say it."""
    if name == "train_samples_per_s":
        batch = found.batch_size * counted.num_micro_batches * counted.num_replicas
        return batch / seconds if seconds else None
    if name == "train_seconds":
        return None if run.num_steps is None else run.num_steps * seconds
    if name == "latency_seconds":
        return seconds
    return seconds / found.batch_size if name == "seconds_per_picture" else None


def _why_not(name: str) -> str:
    if name == "train_seconds":
        return "the source counts epochs, and not steps"
    return "it is not the time of a planned step"


def _card(hardware: str) -> Card | None:
    """Returns the card that is published as `hardware`; a first Gaudi has no number there."""
    title = "Gaudi 1" if hardware == "Gaudi" else hardware
    return next((card for card in CARDS.values() if card.title == title), None)


def step_seconds(card: Card, found: Rehearsed, counted: Counted) -> tuple[float, float]:
    """Returns a step's time by the card's peaks, in bf16: at least, and if nothing is fused.

    The arithmetic, what is sent, or the memory that is read and written, whichever takes longer.
    What is held whatever the batch is touched once in each step, and the weights as often as more
    than what fits a card's caches is read between: once a token, where texts are written.
    Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
    """
    arithmetic = counted.flops / card.bf16_flops
    sent = sum(counted.collective_bytes.values())
    # A link's bandwidth is that of both directions, and each has one.
    links = 2 * sent / card.link_bandwidth if card.link_bandwidth else 0.0
    touched = max(found.held_bytes, counted.weight_bytes)
    least = max(arithmetic, links, touched / card.bandwidth)
    return least, max(least, counted.moved_bytes / card.bandwidth)
