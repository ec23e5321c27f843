"""What an audit says of one line."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Weight(enum.IntEnum):
    """How much a finding matters: the heavier first."""

    NUMBERS = 1
    """A card computes something else, or slows down now and then."""
    WAITS = 2
    """The host waits in each step, and the card then has nothing to do."""
    LAUNCHES = 3
    """The card gets its work in small pieces."""
    FALLS_BACK = 4
    """The host computes, between two copies."""
    COMPILES = 5
    """Graphs are compiled again and again, which takes seconds to minutes each."""
    FAILS = 6
    """A card refuses it, or may hang."""


@dataclass
class Finding:
    """A line that would cost something on a Gaudi."""

    rule: str
    """A key of the rules of the card's, or one of this audit's own: see docs/audit.md."""
    weight: Weight
    file: str
    line: int
    function: str
    message: str
    """What a Gaudi does with it, as a sentence."""
    fix: str
    """The cheapest change that helps, as a sentence."""
    num_steps: int = 0
    """In how many of the judged steps it was met."""
    count: int = 0
    """How often it was met in all."""
    via: str = ""
    """The line of a library that it got to."""
    ranks: tuple[int, ...] = (0,)
    phase: str = ""
    """As in `record.Line`."""
    source: str = ""
    """Who says so."""

    @property
    def place(self) -> tuple[str, str, int, str]:
        """What two findings have in common that are one."""
        return self.rule, self.file, self.line, self.via
