"""Says for every rule of the card how it can be shown, or why it cannot.

The signal of a rule follows from its verdict, and its program is the one in `programs/` with its
key. So a new rule needs a program there, or a reason here; a test asks for one of the two.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lightning_gaudi.simulator.rules import Rule, Verdict
from lightning_gaudi.simulator.rules.table import RULES
from lightning_gaudi.tools.verify.programs import PROGRAMS
from lightning_gaudi.tools.verify.programs.graphs import GRAPHS
from lightning_gaudi.tools.verify.programs.numbers import NUMBERS, REDUCED


class Signal(str, enum.Enum):
    """What shows that a card does as a rule says; the values are those in the file."""

    REFUSED = "refused"
    """The program raises."""
    ON_CPU = "on_cpu"
    """The metric `cpu_fallback` names one of the rule's operators."""
    WAITS = "waits"
    """The call returns only after the work that was queued before it."""
    DEMOTED = "demoted"
    """The result differs from the CPU's."""
    AS_SAID = "as_said"
    """The program itself compares, and returns whether it is as the rule says."""


_SIGNALS = {
    Verdict.REFUSED: Signal.REFUSED,
    Verdict.ON_CPU: Signal.ON_CPU,
    Verdict.DYNAMIC: Signal.WAITS,
    Verdict.WAITS: Signal.WAITS,
    Verdict.DEMOTED: Signal.DEMOTED,
}


@dataclass(frozen=True)
class Probe:
    """Says how a rule is shown."""

    rule: Rule
    signal: Signal
    program: Callable[[torch.device], object]
    num_ranks: int = 1
    """The ranks of the default process group that it needs; 1 for none."""
    expects: Callable[[int], torch.Tensor] | None = None
    """Returns the result without the rule for a number of ranks; None for the CPU's result."""
    on_card_alone: str = ""
    """Why a simulated card cannot show it; empty if it can."""


_NO_TYPE = "no card holds such a tensor, so the rule about the type is met before this one"
_ORDER = "an order that may differ need not differ in a run, and the sums are right in any"
REASONS: dict[str, str] = {
    "fork-beside-card": "it may hang or work, and neither would contradict the rule",
    "fused-attention-in-float16": "it says that nothing is known, which nothing contradicts",
    "nf4-in-float16": "it says that nothing is known, which nothing contradicts",
    "attention-unfused": "it is about the number of launches, of which a card tells nobody",
    "scatter-add-unordered": _ORDER,
    "embedding-bag-gradient-unordered": _ORDER,
    "collective-complex-refused": _NO_TYPE,
    "collective-float8-variants-refused": _NO_TYPE,
    "collective-unsigned-refused": _NO_TYPE,
    "float64-reduced-in-float32": "a float64 of the card is a float32 before it is reduced",
    "small-types-reduced-in-float32": "the sums are the same; it is about how they are made",
    "odd-float8-all-to-all-single-refused": "equal parts for an even number of cards are even",
    "odd-bytes-padded": "the values are the same; it is about a wait within the library",
    "work-timeout-ignored": "to show it, a rank would have to hang",
    "reduce-average-lazy-refused": "lazy collectives need a variable when Python starts",
    "graph-shared-gradients": "whose memory gradients share depends on how a program keeps them",
}
"""The rules without a probe, and why they have none."""

_ON_CARD_ALONE: dict[str, str] = {
    "average-of-booleans": "a simulated card refuses it",
    "embedding-options-on-cpu": "a simulated card documents it, and does not do it",
    "pinned-copy-blocks": "a simulated card copies at once, whatever the memory",
}
_OTHER_SIGNALS = {
    "embedding-options-on-cpu": Signal.ON_CPU,
    "pinned-copy-blocks": Signal.WAITS,
}


def probe_of(rule: Rule) -> Probe | None:
    """Returns the probe of a rule; None if `REASONS` says why it has none.

    Raises:
        KeyError: There is neither a program nor a reason.
    """
    if rule.key in REASONS:
        return None
    num_ranks = 2 if rule.operators[0].startswith("hccl::") else 1
    alone = _ON_CARD_ALONE.get(rule.key, "")
    if (judged := {**GRAPHS, **NUMBERS}.get(rule.key)) is not None:
        return Probe(rule, Signal.AS_SAID, judged, num_ranks, on_card_alone=alone)
    signal = _OTHER_SIGNALS.get(rule.key) or _SIGNALS[rule.verdict]
    if rule.key in REDUCED:
        program, expects = REDUCED[rule.key]
        return Probe(rule, signal, program, num_ranks, expects)
    return Probe(rule, signal, PROGRAMS[rule.key], num_ranks, on_card_alone=alone)


PROBES: dict[str, Probe] = {
    rule.key: probe for rule in RULES if (probe := probe_of(rule)) is not None
}
"""The probes by the key of their rule."""


def applies(rule: Rule, card: str, release: str) -> bool:
    """Returns whether a rule is about a card and a release.

    Args:
        rule: The rule.
        card: The generation's key, as "gaudi2".
        release: Major and minor number, as "1.24".
    """
    return (not rule.cards or card in rule.cards) and (
        not rule.releases or release in rule.releases
    )


def mode_of(rule: Rule) -> str:
    """Returns the mode in which a rule is probed: eager, unless the rule is about lazy mode."""
    return rule.mode or "eager"
