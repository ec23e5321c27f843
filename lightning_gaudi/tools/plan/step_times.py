"""Estimates what a step would take if it ran as public runs did, and how far off this may be.

A card's peak only bounds the time of a step from below. Public runs show what is reached: their
times are modelled as a sum over the counts of a rehearsal, each multiplied by a rate of the card.
`scripts/step_times` fits the rates, and writes them to fitted.json. The range of an estimate is
where eight of ten figures lay when all figures of their model were left out of the fit. For a
program unlike all fitted runs there is no estimate, but a reason.

If a card was measured (`lightning-gaudi verify`), the time of its reference steps scales the
estimate, and no part is faster than the speed that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.measured_card import MeasuredCard
from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.request import CONVOLUTION, Counted, Rehearsed

if TYPE_CHECKING:
    from lightning_gaudi.tools.plan.plan import Planned

TRAINING, DECODING, DECODING_8X = "training", "decoding", "decoding on several cards"
_MARGIN = 2.0
"""By what factor a count may be below or above the range of the fitted runs."""
_MOST_OTHERS = 0.1
"""The largest share of operations that may be in another dtype than that of the fitted runs."""
_FITTED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""The collectives of the fitted runs, which use DDP or ZeRO, or decode on several cards."""
_MOST_CROSS = 0.25
"""The largest share of a training's attentions whose queries come from another sequence than their
keys. In an encoder-decoder it is a third. A classifier may have one, for its first token alone."""
_LEAST_PASSES = 4
"""A program that does not train is taken to decode texts if it reads its weights this often in a
batch."""
_CARDS_OF_SERVER = 8


@dataclass(frozen=True)
class Fit:
    """The model of a card's step times that was fitted to public runs of one kind."""

    rates: Mapping[str, float]
    """Seconds for each unit of the counts of `counts_of`."""
    low: float
    """The first decile of time by estimate, over figures that were left out of the fit."""
    high: float
    """The last decile of it."""
    least: Mapping[str, float]
    """The smallest value among the fitted runs, of each number of `extent_of`."""
    most: Mapping[str, float]
    """The largest value."""
    num_figures: int
    num_models: int
    releases: tuple[str, str]
    """The first and the last release of the Gaudi software of the runs."""
    median_error: float
    """The median relative error of estimates, over figures that were left out of the fit."""
    share_within: float
    """The share of these figures whose estimate was off by a quarter at most."""


@dataclass(frozen=True)
class AsPublicRuns:
    """An estimate of the time of a step, or the reason why there is none."""

    kind: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    parts: Mapping[str, float] | None = None
    """The seconds of each count, whose sum is the estimate."""
    why_not: str = ""
    fit: Fit | None = None
    paces: Mapping[str, float] = field(default_factory=dict)
    """For each reference step, its time on the measured card divided by its time in public runs.
    The estimate is scaled by their geometric mean."""
    bounds: tuple[str, ...] = ()
    """The parts whose time follows from a measured speed, which is lower than that of public
    runs."""


def counts_of(kind: str, counted: Counted) -> dict[str, float]:
    """Returns the counts that determine the time of a step, by their names in `Fit.rates`."""
    if kind == TRAINING:
        sent = sum(counted.collective_bytes.values())
        # DDP's reductions overlap with backward, but a program that gathers weights waits for them,
        # so a byte has another rate.
        is_gathered = bool(counted.collective_bytes.get("all_gather"))
        return {
            "operations": counted.flops,
            # What products move is left out: the matrix engine overlaps with the vector cores.
            "memory": counted.fused_bytes - counted.product_bytes,
            "reduced": 0 if is_gathered else sent,
            "reduced and gathered": sent if is_gathered else 0,
        }
    return {
        "weights": counted.weight_bytes,
        "layers": counted.num_attentions,
        "tokens": counted.num_passes,
    }


def extent_of(kind: str, counted: Counted) -> dict[str, float]:
    """Returns the numbers that must be near those of the fitted runs, by their names in reasons."""
    if kind == TRAINING:
        return {
            "operations of a batch": counted.flops / max(counted.num_micro_batches, 1),
            "operations for each byte that is moved": counted.flops / max(counted.fused_bytes, 1),
        }
    passes = max(counted.num_passes, 1)
    return {
        "weights": counted.weight_bytes / passes,
        "operations for each byte of weights": counted.flops / max(counted.weight_bytes, 1),
    }


def as_public_runs(
    card: str,
    counted: Counted,
    num_cards: int,
    measured: MeasuredCard | None = None,
    *,
    is_lazy: bool = True,
) -> AsPublicRuns:
    """Returns the estimated time of a step on a card.

    Args:
        card: The key of the card.
        counted: The counts of a rehearsal.
        num_cards: The number of cards, of all nodes, that run the step together.
        measured: What was measured of such a card, if it was.
        is_lazy: Whether the step runs in lazy mode; the reference steps of this mode are used.
    """
    from lightning_gaudi.tools.plan import fitted

    if card not in GAUDIS:
        return AsPublicRuns(why_not="it is no Gaudi")
    kind = _kind(counted, num_cards)
    fit = fitted.FITS.get((kind, card))
    why_not = _why_not(kind, card, counted, num_cards, fit)
    if why_not or fit is None:
        return AsPublicRuns(kind, why_not=why_not)
    parts = {name: fit.rates[name] * count for name, count in counts_of(kind, counted).items()}
    found = AsPublicRuns(kind, parts=parts, fit=fit)
    if measured is not None:
        found = _as_measured(found, counts_of(kind, counted), num_cards, measured, is_lazy=is_lazy)
    seconds = sum((found.parts or {}).values())
    return replace(found, seconds=seconds, low=fit.low * seconds, high=fit.high * seconds)


_LINKS = ("reduced", "reduced and gathered")


def _as_measured(
    found: AsPublicRuns,
    counts: Mapping[str, float],
    num_cards: int,
    measured: MeasuredCard,
    *,
    is_lazy: bool,
) -> AsPublicRuns:
    """Returns an estimate from public runs, corrected for a card that was measured.

    Reductions that overlap with backward keep their time. The plan's least time bounds them.
    """
    speeds = {
        "operations": measured.flops("bfloat16"),
        "memory": measured.bandwidth(),
        "weights": measured.bandwidth(),
        "reduced and gathered": measured.link_bandwidth(num_cards),
    }
    paces = _paces(found.kind, measured, is_lazy=is_lazy)
    pace = math.prod(paces.values()) ** (1 / len(paces)) if paces else 1.0
    parts, bounds = {}, []
    for name, seconds in (found.parts or {}).items():
        likely = seconds * (1.0 if name in _LINKS else pace)
        speed = speeds.get(name)
        least = counts[name] / speed if speed else 0.0
        parts[name] = max(likely, least)
        bounds += [name] if least > likely else []
    return replace(found, parts=parts, paces=paces, bounds=tuple(bounds))


def _paces(kind: str, measured: MeasuredCard, *, is_lazy: bool) -> dict[str, float]:
    """Returns the time of the reference steps of a kind, divided by that in public runs."""
    from lightning_gaudi.tools.plan import fitted

    if kind != TRAINING and not is_lazy:
        return {}  # all public runs that decode texts replay graphs, which need lazy mode
    seconds = measured.step_seconds("lazy" if is_lazy else "eager")
    found = {}
    for name, counted in fitted.REFERENCES.items():
        likely = as_public_runs(measured.card, counted, 1).seconds
        if name in seconds and likely and counted.is_trained == (kind == TRAINING):
            found[name] = seconds[name] / likely
    return found


def of_card(card: Card, counted: Counted, rehearsed: Rehearsed) -> AsPublicRuns:
    """Returns the estimated time of a rehearsed step on a card, corrected by its measurements."""
    return as_public_runs(
        card.key, counted, rehearsed.num_cards, card.measured, is_lazy=rehearsed.is_lazy
    )


def as_public_runs_dict(planned: Planned, cards: Sequence[Card]) -> dict[str, dict[str, Any]]:
    """Returns the estimate for each Gaudi that a plan is for, as plain data."""
    if planned.rehearsed is None or planned.counted is None:
        return {}
    found = {
        card.key: asdict(of_card(card, planned.counted, planned.rehearsed))
        for card in cards
        if card.key in planned.largest and card.key in GAUDIS
    }
    for each in found.values():
        each.pop("fit")
    return found


def _kind(counted: Counted, num_cards: int) -> str:
    if counted.is_trained:
        return TRAINING
    return DECODING if num_cards == 1 else DECODING_8X


def _why_not(kind: str, card: str, counted: Counted, num_cards: int, fit: Fit | None) -> str:
    """Returns why a program is outside of what was fitted; empty if it is not."""
    total = sum(flops for name, flops in counted.flops_of.items() if name != CONVOLUTION)
    if not counted.flops or not total:
        return "it multiplies no matrices, or by an operator whose operations cannot be counted"
    if counted.flops_of.get(CONVOLUTION, 0) > _MOST_OTHERS * total:
        return "it convolves, and no public run that was fitted does"
    if not counted.num_attentions:
        return "it has no attention, and all public runs that were fitted are transformers"
    others = {
        name: flops
        for name, flops in counted.flops_of.items()
        if name not in (CONVOLUTION, "bfloat16")
    }
    if sum(others.values()) > _MOST_OTHERS * total:
        name = max(others, key=lambda each: others[each])
        return f"it computes in {name}, and all public runs that were fitted in bfloat16"
    if num_cards > _CARDS_OF_SERVER:
        return f"{num_cards} cards are more than a server, and settings of such runs are not public"
    sent = sum(counted.collective_bytes.values())
    for name, num_bytes in counted.collective_bytes.items():
        if name not in _FITTED_COLLECTIVES and num_bytes > _MOST_OTHERS * sent:
            return f"it sends by {name}, and no public run that was fitted does"
    if kind == TRAINING and counted.num_cross_attentions > _MOST_CROSS * counted.num_attentions:
        return (
            "it attends from one sequence to another, as an encoder-decoder does, and public runs "
            "of one such model alone are known in bfloat16"
        )
    if kind != TRAINING and counted.num_passes < _LEAST_PASSES:
        return "it neither trains nor writes texts"
    if fit is None:
        return f"no public run of this kind ({kind}) is known of a {GAUDIS[card].title}"
    for name, count in extent_of(kind, counted).items():
        if not fit.least[name] / _MARGIN <= count <= fit.most[name] * _MARGIN:
            return (
                f"{name}: {count:.2g}, where public runs have {fit.least[name]:.2g} to "
                f"{fit.most[name]:.2g}"
            )
    return ""


@dataclass(frozen=True)
class Later:
    """A figure of a published run that was measured again with later software."""

    value: float
    release: str
    """The release of the Gaudi software."""


def later(run: str, hardware: str, figure: str) -> Later | None:
    """Returns a figure of a published run with later software; None if none is known."""
    from lightning_gaudi.tools.plan.fitted import LATER

    return LATER.get((run, hardware, figure))


def duration(seconds: float) -> str:
    """Returns a time as a text in suitable units, as "255 ms" or "2 h 50 min"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{seconds / 86400:.1f} days"
    return f"{hours} h {minutes:02} min"
