"""What a step would take if it ran as public runs did, and how far off such a guess is.

A peak says what a card cannot do. Public runs say what it does: their times are a sum of what a
rehearsal counts, each times a rate of the card. The rates are fitted by `scripts/step_times`, which
writes `fitted.py`. A range is where eight of ten figures lay when all figures of their model had
been left out of the fit. Outside of what was fitted there is no estimate, but a reason.

Where a card was measured (`lightning-gaudi verify`), its reference steps say how much longer it
takes than public runs would, and nothing is faster than what was measured of it.
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
"""How many times less or more than in any fitted run a program may count."""
_MOST_OTHERS = 0.1
"""Of a program's operations, how many may be in another dtype than those of the fitted runs."""
_FITTED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""By what DDP, ZeRO and texts that several cards write send."""
_MOST_CROSS = 0.25
"""Of a training's attentions, how many may have queries of another sequence than keys: a decoder
that looks at an encoder has a third, and a classifier one, which asks for its first token alone."""
_LEAST_PASSES = 4
"""A program that trains nothing writes texts if it reads its weights more often in a batch."""
_CARDS_OF_SERVER = 8


@dataclass(frozen=True)
class Fit:
    """What public runs of a kind say of a card."""

    rates: Mapping[str, float]
    """Seconds for one of each of the counts of `counts_of`."""
    low: float
    """Of ten figures, one took a smaller share of its estimate than this, if left out."""
    high: float
    """And one took more times its estimate."""
    least: Mapping[str, float]
    """Of each of `extent_of`, the smallest of the figures."""
    most: Mapping[str, float]
    num_figures: int
    num_models: int
    releases: tuple[str, str]
    """Of the Gaudi software, the first and the last."""
    median_error: float
    """Of estimates of the figures that were left out."""
    share_within: float
    """Of the figures, those whose estimate was within a quarter."""


@dataclass(frozen=True)
class AsPublicRuns:
    """An estimate of a step, or why there is none."""

    kind: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    parts: Mapping[str, float] | None = None
    """Seconds of each count; they sum up to the estimate."""
    why_not: str = ""
    fit: Fit | None = None
    paces: Mapping[str, float] = field(default_factory=dict)
    """By reference step, how many times as long as in public runs it took on the card that was
    measured; the estimate has their mean."""
    bounds: tuple[str, ...] = ()
    """The parts that take as long as by the speed that was measured, which is less than in public
    runs."""


def counts_of(kind: str, counted: Counted) -> dict[str, float]:
    """Returns what the time of a step is a sum of, by its name in `Fit.rates`."""
    if kind == TRAINING:
        sent = sum(counted.collective_bytes.values())
        # DDP's reductions go on while backward does; who gathers weights, waits for them.
        is_gathered = bool(counted.collective_bytes.get("all_gather"))
        return {
            "operations": counted.flops,
            # Products go on in the matrix engine while the vector cores move the rest.
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
    """Returns what must not be far outside of the fitted runs, named as a reason names it."""
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
    """Returns what a step would take on a card.

    Args:
        card: Its key.
        counted: What a rehearsal has counted.
        num_cards: Cards of all nodes that run it together.
        measured: What was measured of such a card.
        is_lazy: Whether it is to run in lazy mode, in which the reference steps are looked at.
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
    """Returns an estimate of public runs as it is for a card that was measured.

    What reductions take beside a backward is no time of its own: the plan's least time has it.
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
    """Returns how many times as long as in public runs the reference steps of a kind took."""
    from lightning_gaudi.tools.plan import fitted

    if kind != TRAINING and not is_lazy:
        return {}  # texts are written without a graph there, and no public run was
    seconds = measured.step_seconds("lazy" if is_lazy else "eager")
    found = {}
    for name, counted in fitted.REFERENCES.items():
        likely = as_public_runs(measured.card, counted, 1).seconds
        if name in seconds and likely and counted.is_trained == (kind == TRAINING):
            found[name] = seconds[name] / likely
    return found


def of_card(card: Card, counted: Counted, rehearsed: Rehearsed) -> AsPublicRuns:
    """Returns what a step that was rehearsed would take on a card, as it was measured if it was."""
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
        return "an operator multiplies matrices whose operations nobody knows, or none does"
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
        return f"{num_cards} cards are more than a server, and no settings of such runs are public"
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
    """A figure of a run with later software."""

    value: float
    release: str
    """Of the Gaudi software."""


def later(run: str, hardware: str, figure: str) -> Later | None:
    """Returns what a published run had with later software; None where nothing is known."""
    from lightning_gaudi.tools.plan.fitted import LATER

    return LATER.get((run, hardware, figure))


def duration(seconds: float) -> str:
    """Returns a time of any length in the units that suit it: "255 ms", "2 h 50 min"."""
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
