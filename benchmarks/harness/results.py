"""The file of a benchmark's results: rows, machine, versions, and who else was at work."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.catalog import BENCHMARKS, LAZY
from benchmarks.harness.rows import Row

FOLDER = Path(__file__).parents[1] / "results"
"""Those that the documentation quotes."""


@dataclass(frozen=True)
class Run:
    """One benchmark, run in one mode."""

    mode: str
    date: str
    """Of its beginning, in UTC."""
    seconds: float
    """How long it took."""
    load_average: float
    """Of the minute before."""
    other_cores: float | None
    """Cores that others used meanwhile, on average; None where the system does not say."""
    is_busy: bool
    """So many that the figures are doubtful."""
    is_quick: bool
    """Too few rounds for figures."""
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[Row]


@dataclass(frozen=True)
class Result:
    """All runs of one benchmark."""

    benchmark: str
    runs: list[Run]

    def rows(self) -> list[Row]:
        """Of all modes; where there are two, the names say which."""
        return [
            replace(row, name=f"{run.mode}, {row.name}") if self._has_modes else row
            for run in self.runs
            for row in run.rows
        ]

    @property
    def _has_modes(self) -> bool:
        return len(self.runs) > 1 or self.runs[0].mode == LAZY

    def write(self, folder: Path) -> None:
        """Write it as `<benchmark>.json`."""
        text = json.dumps(asdict(self), indent=1)
        (folder / f"{self.benchmark}.json").write_text(f"{text}\n", "utf-8")


def read(folder: Path) -> list[Result]:
    """Returns what a folder has, in the order of the catalog."""
    files = (folder / f"{name}.json" for name in BENCHMARKS)
    return [_parse(json.loads(file.read_text("utf-8"))) for file in files if file.exists()]


def is_kept(results: Iterable[Result]) -> bool:
    """Tells whether all figures keep their limits."""
    return all(row.is_kept for result in results for row in result.rows())


def _parse(found: dict[str, Any]) -> Result:
    runs = [
        Run(**run | {"rows": [Row.from_json(row) for row in run["rows"]]}) for run in found["runs"]
    ]
    return Result(found["benchmark"], runs)
