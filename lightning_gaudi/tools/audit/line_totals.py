"""Sums up what each line of the user's code has the card do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.rules.rule import Verdict

from .call_sites import TRAINING
from .record import Line, Record

TITLES = {
    "launches": "launches",
    "compilations": "compiled",
    "host_syncs": "syncs",
    "bytes_copied": "bytes copied",
    "fallbacks": "on the CPU",
    "collective_bytes": "in collectives",
}
"""The titles of columns by the fields of `LineTotals`."""


@dataclass
class LineTotals:
    """The sums of one line in training, warm-up included."""

    file: str
    line: int
    launches: int = 0
    compilations: int = 0
    host_syncs: int = 0
    bytes_copied: int = 0
    fallbacks: int = 0
    collective_bytes: int = 0

    def add(self, line: Line) -> None:
        """Adds the events of one kind at this line."""
        if line.kind == "launch":
            self.launches += line.amount
        # A graph of lazy mode is one launch; its amount is its number of operators.
        elif line.kind == "graph":
            self.launches += line.count
        elif line.kind == "host_sync":
            self.host_syncs += line.count
        elif line.kind == "transfer":
            self.bytes_copied += line.amount
        elif line.kind == "collective":
            self.collective_bytes += line.amount
        elif line.kind == "rule" and table.find(line.what).verdict is Verdict.ON_CPU:
            self.fallbacks += line.count
        if line.kind in ("graph", "compilation") and line.what != "reused":
            self.compilations += line.count


def totals(record: Record) -> list[LineTotals]:
    """Returns every line of the user's that gave the card something to do, most launches first."""
    found: dict[tuple[str, int], LineTotals] = {}
    for line in record.lines:
        if line.stage == TRAINING:
            place = line.file, line.line
            found.setdefault(place, LineTotals(*place)).add(line)
    return sorted(found.values(), key=lambda each: (-each.launches, -each.bytes_copied))


def recompilations(record: Record) -> Iterator[tuple[Line, str, int]]:
    """Yields lines that had graphs compiled again, the shapes that differed, and how often."""
    for line in record.lines:
        if line.kind in ("graph", "compilation") and line.what == "recompiled":
            for cause, count in line.details.items():
                yield line, cause, count
