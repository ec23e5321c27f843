"""Has what public runs say of the cards, from fitted.json.

`python -m scripts.step_times.fit` writes that file. A published figure with later software is from
scripts/step_times/later.csv.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lightning_gaudi.tools.plan.request import Counted
from lightning_gaudi.tools.plan.step_times import Fit, Later

_READ = json.loads(Path(__file__).with_name("fitted.json").read_text("utf-8"))

FITS: Mapping[tuple[str, str], Fit] = {
    (kind, card): Fit(**{**fit, "releases": tuple(fit["releases"])})
    for kind, fits in _READ["fits"].items()
    for card, fit in fits.items()
}
"""The fits by kind and card."""

LATER: Mapping[tuple[str, str, str], Later] = {
    (row["run"], row["hardware"], row["figure"]): Later(float(row["value"]), row["release"])
    for row in _READ["later"]
}
"""The figures with later software by run, hardware and figure."""

REFERENCES: Mapping[str, Counted] = {
    name: Counted(**counts) for name, counts in _READ["references"].items()
}
"""The counts of the steps of `lightning-gaudi verify`, by name."""
