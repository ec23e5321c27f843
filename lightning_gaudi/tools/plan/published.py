"""Compares what was published of a run with what its plan says.

A program declares that it is a published run by a callback of its Trainer that has a method
`published_run`. The figures are the program's, and none are known here. The time of a step by a
card's peaks stands beside them, which is an estimate and not a measurement.
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
    """Holds a published figure, and what the plan says of it."""

    figure: Figure
    card: str
    """The key of the card; "" if no plans are made for it."""
    least: float | None
    """The figure if a step took the least possible time; None if it is not estimated."""
    unfused: float | None
    """The figure if each operator read and wrote memory."""
    why_not: str
    """Why it is not estimated."""
    likely: tuple[float, float] | None = None
    """The range of the figure if a step took as long as in public runs."""
    why_not_likely: str = ""
    """Why there is no such range."""

    @property
    def errors(self) -> tuple[float, float] | None:
        """The errors of both estimates as shares of the published value; 0.1 is 10 % more."""
        if self.least is None or self.unfused is None:
            return None
        return self.least / self.figure.value - 1, self.unfused / self.figure.value - 1


@dataclass(frozen=True)
class Room:
    """Compares whether a batch fits a card, as published and as planned."""

    hardware: str
    batch_size: int
    did_fit: bool
    """Whether it ran, as published, or there was no room."""
    largest: int | None
    """The largest batch of the plan; None if there is no plan for that card."""

    @property
    def agrees(self) -> bool | None:
        """Whether the plan says the same; None if it says nothing."""
        return None if self.largest is None else (self.batch_size <= self.largest) == self.did_fit


def declared(callbacks: Iterable[Any]) -> PublishedRun | None:
    """Returns the published run that a callback of a Trainer declares; None if none does."""
    for each in callbacks:
        if hasattr(each, "published_run"):
            run: PublishedRun = each.published_run()
            return run
    return None


def beside(run: PublishedRun, request: Request, found: Rehearsed, counted: Counted) -> list[Beside]:
    """Returns each figure of a run with its estimate, or with the reason why there is none."""
    return [_beside(each, run, request, found, counted) for each in run.figures]


def rooms(run: PublishedRun, largest: Mapping[str, int]) -> list[Room]:
    """Returns each batch of which is known whether it fitted a card."""
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
    """Returns the value of a figure if a step takes so long; None if that does not decide it."""
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
    """Returns the card that sources call `hardware`; they give a first Gaudi no number."""
    title = "Gaudi 1" if hardware == "Gaudi" else hardware
    return next((card for card in CARDS.values() if card.title == title), None)


def step_seconds(card: Card, found: Rehearsed, counted: Counted) -> tuple[float, float]:
    """Returns the time of a step by the card's peaks in bf16: the least, and if nothing is fused.

    It is the time of the arithmetic, of the links, or of the memory, whichever is longest. Memory
    that is held whatever the batch is touched once in each step. The weights are read again
    whenever more than a card's caches hold was read in between: once a token, if texts are written.
    Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
    """
    arithmetic = counted.flops / card.bf16_flops
    sent = sum(counted.collective_bytes.values())
    # The bandwidth of a link is that of both directions together, and a rank sends in one.
    links = 2 * sent / card.link_bandwidth if card.link_bandwidth else 0.0
    touched = max(found.held_bytes, counted.weight_bytes)
    least = max(arithmetic, links, touched / card.bandwidth)
    return least, max(least, counted.moved_bytes / card.bandwidth)
