"""All ranks' records as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .record import WARM_UP, Line, Record


@dataclass
class Audit:
    """What was noted of a command."""

    command: tuple[str, ...]
    program_status: int
    """What the command exited with."""
    records: list[Record]
    """By rank."""

    @property
    def num_steps(self) -> int:
        """The steps that every rank has taken."""
        return min((len(record.steps) for record in self.records), default=0)

    @property
    def status(self) -> int:
        """Of the program: what it exited with, and 0 where it was ended after its steps.

        It then has no status of its own: what a launcher makes of ranks that leave is our doing.
        """
        return 0 if self.is_ended else self.program_status

    @property
    def is_ended(self) -> bool:
        """Whether all ranks have taken their steps, and were ended after them."""
        ended = {record.rank for record in self.records if record.is_ended}
        return bool(ended) and not self.missing_ranks and len(ended) == len(self._ranks)

    @property
    def missing_ranks(self) -> list[int]:
        """Those that left no record, since they were killed or never ended."""
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

    Of a program without an optimizer all is one step, which is judged.
    """
    return range(WARM_UP, len(record.steps)) if record.steps else range(1)


def lines_of(record: Record, kinds: Sequence[str], stage: str) -> Iterator[tuple[Line, list[int]]]:
    """Lines of these kinds in a stage, with those of the judged steps that they were met in."""
    judged = judged_steps(record)
    for line in record.lines:
        if line.kind in kinds and line.stage == stage:
            yield line, [step for step in line.steps if step in judged]
