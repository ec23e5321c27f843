"""What is known of each published run of the recipes: its counts, and the range beside its figures.

Runs are rehearsed (`rehearse`, rehearsed.jsonl) where their programs do what `count` does not:
experts, pairs of answers, weights in four bits, products in float8, FSDP, sequences in parts,
pictures.
Of the others counts.csv has the step, and decoders.csv the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.tools.plan.published import Beside, beside
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request
from recipes.common.comparison import planned_run
from recipes.common.published import Run, read_runs
from scripts.step_times import count
from scripts.step_times.rule import HERE, read

RECIPES = HERE.parents[1] / "recipes"
REHEARSED = HERE / "rehearsed.jsonl"
PUBLISHED = {"gaudi1": "Gaudi", "gaudi2": "Gaudi 2", "gaudi3": "Gaudi 3"}
"""What the registries call each card."""
_NEW_TOKENS = 100
_TEXTS = {
    "bloomz_7b_1x": "bigscience/bloomz-7b1",
    "bloomz_7b_8x": "bigscience/bloomz-7b1",
    "bloomz_176b_8x": "bigscience/bloomz",
    "tldr_news_8x": "bigscience/bloomz",
}
"""Runs that write texts, and their models."""


@dataclass(frozen=True)
class Step:
    """What a step of a run counts, and for whom."""

    batch_size: int
    num_cards: int
    counted: Counted


def runs() -> dict[tuple[str, str], Run]:
    """Returns all published runs, by recipe and name."""
    folders = sorted(path.parent for path in RECIPES.glob("*/__main__.py"))
    return {
        (folder.name, name): run for folder in folders for name, run in read_runs(folder).items()
    }


@cache
def read_rehearsed() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns what was rehearsed of each run: a row for each kind of attention of its cards."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in REHEARSED.read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row["recipe"], row["run"]), []).append(row)
    return found


def step_of(run: Run, card: str) -> Step | None:
    """Returns what a step of a run counts on a card; None where nobody has counted it."""
    for row in read_rehearsed().get((run.recipe, run.name), []):
        if card in row["on"]:
            return Step(row["batch_size"], row["num_cards"], Counted(**row["counted"]))
    if run.name in _TEXTS:
        model = {"model": _TEXTS[run.name], "cards": str(run.num_cards), "batch": "1"}
        return Step(1, run.num_cards, _times(count.count_decoding(model), _NEW_TOKENS))
    if (row := _counted().get((run.recipe, run.name))) is None:
        return None
    return Step(int(row["batch"]), int(row["cards"]), count.count_training(row, row))


@cache
def _counted() -> dict[tuple[str, str], dict[str, str]]:
    """Returns the settings and the counts of the runs that counts.csv has."""
    counts = {count.key_of(row): row for row in read("counts")}
    return {
        (row["recipe"], row["run"]): row | counts[count.key_of(row)] for row in read("registries")
    }


def _times(counted: Counted, number: int) -> Counted:
    """Returns what so many tokens count, of a token's counts."""
    return replace(
        counted,
        flops=number * counted.flops,
        weight_bytes=number * counted.weight_bytes,
        num_attentions=number * counted.num_attentions,
        num_passes=number * counted.num_passes,
        flops_of={name: number * each for name, each in counted.flops_of.items()},
    )


def figures_of(run: Run) -> Iterator[tuple[Beside, Step]]:
    """Yields what a plan of a run says beside each of its figures that a step's time gives."""
    for card in GAUDIS:
        if (step := step_of(run, card)) is None:
            continue
        held = Rehearsed(step.batch_size, 0, 0, num_cards=step.num_cards)
        request = Request(devices=step.num_cards)
        for each in beside(planned_run(run, {}), request, held, step.counted):
            if each.card == card and each.least is not None:
                yield each, step
