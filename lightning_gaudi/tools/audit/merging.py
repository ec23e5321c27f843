"""Takes the records of all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .record import WARM_UP, Line, Record


@dataclass
class Audit:
    """A command, its exit status, and the records of its ranks."""

    command: tuple[str, ...]
    program_status: int
    """The exit status of the command."""
    records: list[Record]
    """The records, by rank."""

    @property
    def num_steps(self) -> int:
        """The steps that every rank has taken."""
        return min((len(record.steps) for record in self.records), default=0)

    @property
    def status(self) -> int:
        """The program's exit status, or 0 where it was ended after its steps."""
        # What a launcher makes of ranks that leave early is our doing, and no failure.
        return 0 if self.is_ended else self.program_status

    @property
    def is_ended(self) -> bool:
        """Whether all ranks have taken their steps, and were ended after them."""
        ended = {record.rank for record in self.records if record.is_ended}
        return bool(ended) and not self.missing_ranks and len(ended) == len(self._ranks)

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks that left no record, because they were killed or never ended."""
        world_size = max((record.world_size for record in self.records), default=0)
        return sorted(set(range(world_size)) - self._ranks)

    @property
    def is_of_card(self) -> bool:
        """Whether the program gave a card anything to do."""
        return any(record.lines for record in self.records)

    @property
    def _ranks(self) -> set[int]:
        return {record.rank for record in self.records}

    @property
    def first(self) -> Record:
        """The record of the first rank."""
        return self.records[0]


def judged_steps(record: Record) -> range:
    """Returns the steps of a process that are judged: those after the warm-up.

    A program without an optimizer is one step, which is judged.
    """
    return range(WARM_UP, len(record.steps)) if record.steps else range(1)


def lines_of(record: Record, kinds: Sequence[str], stage: str) -> Iterator[tuple[Line, list[int]]]:
    """Yields lines of these kinds in a stage, each with the judged steps in which it was met."""
    judged = judged_steps(record)
    for line in record.lines:
        if line.kind in kinds and line.stage == stage:
            yield line, [step for step in line.steps if step in judged]
