"""The table of faults, and what was measured of each in this run."""

from __future__ import annotations

import textwrap

FAULTS = {
    1: "killed in mid-epoch, resumed",
    2: "killed while saving a file",
    3: "killed while saving shards",
    4: "the disk is full",
    5: "a checkpoint cut short",
    6: "one bit flipped",
    7: "a malicious pickle",
    8: "_instantiator in a checkpoint",
    9: "a loss of NaN or inf",
    10: "a rank hangs in a collective",
    11: "a rank is killed",
    12: "the same under torchrun",
    13: "the master's port is in use",
    14: "another number of ranks at resume",
    15: "a wrong configuration file",
    16: "an unknown precision",
    17: "more devices than cards",
    18: "data that are missing",
    19: "out of device memory",
    20: "SIGTERM, SLURM's requeue",
    21: "one rank raises",
    22: "a rank waits with the GIL held",
}
"""By number, in the order of the page on reliability."""

_WIDTH = 36


class Table:
    """What was measured, by the number of the fault."""

    def __init__(self) -> None:
        self._figures: dict[int, list[str]] = {}
        self._failed: set[int] = set()

    def add(self, row: int, figure: str) -> None:
        """Note what was measured of a fault, in a few words."""
        assert row in FAULTS, row
        self._figures.setdefault(row, []).append(figure)

    def fail(self, row: int) -> None:
        """Note that a test of a fault has failed."""
        self._failed.add(row)

    def lines(self) -> list[str]:
        """The table as text; of a fault that no test was run of, that it was not."""
        return [line for row, name in FAULTS.items() for line in self._row(row, name)]

    def _row(self, row: int, name: str) -> list[str]:
        state = "FAILS" if row in self._failed else "holds" if row in self._figures else "-"
        figures = "; ".join(self._figures.get(row, ["not run"]))
        wrapped = textwrap.wrap(figures, 80) or [""]
        first = f"{row:>2}  {name:<{_WIDTH}}{state:<7}{wrapped[0]}"
        return [first, *(" " * (_WIDTH + 11) + line for line in wrapped[1:])]
