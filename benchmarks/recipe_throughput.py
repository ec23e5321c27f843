"""Compares the recipes with Hugging Face's Trainer: tokens a second with the same model and text.

Both sides train on the CPU. The figures show how much computation static shapes with little padding
save, and nothing of a Gaudi's speed. A device that compiles a graph for every shape saves more, so
the number of shapes is given, too.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import torch
import transformers

from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import Row, number, ratio
from benchmarks.recipe_sides import HuggingFaceSide, RecipeSide
from benchmarks.recipe_tasks import TASKS, Task
from lightning_gaudi.data import describe

NUM_WARMUP_STEPS, NUM_ROUNDS, NUM_THREADS, DROPOUT = 2, 5, 2, 0.1
_OURS, _THEIRS = "the recipe", "Hugging Face's Trainer"


@dataclass(frozen=True)
class Batches:
    """Describes the batches of a side in an epoch."""

    num_batches: int
    num_shapes: int
    padding: float
    """The share of padding in all tokens, 0 to 1, in sources and targets together."""


def measure(effort: Effort) -> list[Row]:
    """Measures every task."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(NUM_THREADS)
    rows = []
    for kind in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            rows += _compare(kind(Path(folder), DROPOUT), effort.rounds(NUM_ROUNDS))
    return rows


def _compare(task: Task, num_rounds: int) -> list[Row]:
    """Times both sides in turns; each round has other batches."""
    sides = task.sides()
    batches = [_batches(side, task.pad_ids) for side in sides]
    by_name = dict(zip((_OURS, _THEIRS), sides, strict=True))
    epochs = {name: count() for name in by_name}
    speeds = in_turns(
        (_OURS, _THEIRS),
        num_rounds,
        lambda name: by_name[name].fit(NUM_WARMUP_STEPS, task.num_steps, next(epochs[name])),
    )
    speed = ratio(
        f"{task.title}: real tokens a second, times those of {_THEIRS}",
        speeds[_OURS],
        speeds[_THEIRS],
        limit=task.target,
        is_floor=True,
        detail=" against ".join(f"{median(each):,.0f}" for each in speeds.values()),
    )
    mine, other = batches
    counts = (
        ("shapes of an epoch", mine.num_shapes, other.num_shapes),
        ("batches of an epoch", mine.num_batches, other.num_batches),
        ("padding", 100 * mine.padding, 100 * other.padding),
    )
    rows = [
        Row(
            f"{task.title}: {name}",
            ours,
            "%" if name == "padding" else "",
            detail=f"{_THEIRS}: {number(theirs)}",
        )
        for name, ours, theirs in counts
    ]
    return [speed, *rows]


def _batches(side: RecipeSide | HuggingFaceSide, pad_ids: dict[str, int]) -> Batches:
    report = describe(side.loader(), pad_ids=pad_ids)
    tokens, places = (sum(column) for column in zip(*report.tokens.values(), strict=True))
    return Batches(report.num_batches, report.num_compilations, 1 - tokens / places)
