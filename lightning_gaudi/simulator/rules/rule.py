"""Defines what a rule of the card's consists of, and the verdicts that there are."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """What a card does with an operation that a rule is about."""

    REFUSED = "refused"
    """It raises."""
    DEMOTED = "demoted"
    """It computes other numbers, in a smaller type or by another formula."""
    ON_CPU = "on_cpu"
    """It copies the arguments to the host, computes there and copies the results back."""
    DYNAMIC = "dynamic"
    """A result's shape depends on values: the host waits for it, and a new shape compiles anew."""
    WAITS = "waits"
    """The host waits for a value."""
    UNDEFINED = "undefined"
    """What follows is not known: a hang, a crash, or nothing."""
    NOTED = "noted"
    """It differs in the last digits, or in a way that nothing here can see: documented only."""


@dataclass(frozen=True)
class Rule:
    """A row of the table: what it applies to, what a card does, and which source says so."""

    key: str
    """Its name, in kebab case; users see it."""
    verdict: Verdict
    """What a card does."""
    operators: tuple[str, ...]
    """Operators as they reach a backend: "aten::take" (every overload), "aten::add.Tensor" (one),
    "*" (all of torch's), or "hccl::all_reduce" (a collective, as torch.distributed names it)."""
    what: str
    """What a card does, as the end of a sentence that begins with "a Gaudi"."""
    instead: str
    """What to write instead, as a sentence."""
    source: str
    """The vendor's file and release, or the page, that says so."""
    dtypes: tuple[str, ...] = ()
    """Types without "torch.", of any tensor among arguments and results; none means any."""
    mode: str | None = None
    """"lazy" or "eager"; None means both."""
    cards: tuple[str, ...] = ()
    """Generations, as "gaudi2"; none means all."""
    releases: tuple[str, ...] = ()
    """Releases of the Gaudi software, as "1.24"; none means all."""
    when: str | None = None
    """A condition beyond types, by name; None means always."""
