"""Rehearse a program once, without a search for the largest batch; and run it for its peak."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_gaudi.tools.plan.request import Rehearsed, Request, read_results
from tests.helpers.process import run

MEASURED = (sys.executable, str(Path(__file__).with_name("measured.py")))
"""Runs a recipe or a script, and prints the peak of each rank."""


def rehearse(folder: Path, command: Sequence[str], case: Request) -> Rehearsed:
    """What the first of the case's ranks takes on a dry card; the others are not there."""
    result, request = folder / "result", folder / "case"
    env = Request(**{**vars(case), "result": str(result)}).environment(request) | {
        "LIGHTNING_GAUDI_RELIABILITY": "off"
    }
    env |= {"LIGHTNING_GAUDI_SIMULATE": "8", "LIGHTNING_GAUDI_SIMULATE_DRY": "1"}
    done = run(command, env=env, cwd=folder, timeout=280, check=False)
    found = read_results(result)
    assert found, done.stderr
    assert "rehearsed" in found[0], found
    return Rehearsed(**found[0]["rehearsed"])


def measured_peak(folder: Path, command: Sequence[str], num_cards: int) -> int:
    """The most that the first card of a run of a `MEASURED` program had in use."""
    env = {"LIGHTNING_GAUDI_SIMULATE": str(num_cards)}
    out = run(command, env=env, cwd=folder, timeout=280).stdout
    return int(re.findall(r"PEAK of rank 0: (\d+)", out)[0])


def planned_peak(found: Rehearsed) -> int:
    """What a card must have."""
    return max(found.peak_bytes, found.setup_bytes)
