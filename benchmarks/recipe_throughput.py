"""Tokens a second of the recipes against Hugging Face's Trainer: same model, same text, same CPU.

    python benchmarks/recipe_throughput.py                # all three, about twelve minutes
    python benchmarks/recipe_throughput.py --tasks bert --rounds 7

No simulator: Hugging Face's Trainer knows no simulated card, so both sides train on the CPU. See
the README.md beside for the method and for results.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from recipe_sides import HuggingFaceSide, RecipeSide
from recipe_tasks import TASKS, Task
from token_efficiency import table as efficiency_table

from lightning_gaudi.data import describe

NUM_WARMUP_STEPS = 2
_SIDES = ("recipe", "Hugging Face")


@dataclass(frozen=True)
class Batches:
    """What a side's loader gives in an epoch."""

    num_batches: int
    num_shapes: int
    padding: float
    """Share of what is computed on, 0 to 1: source and target together where there are both."""


@dataclass(frozen=True)
class Result:
    """One task: the recipe's figure and Hugging Face's."""

    title: str
    tokens_per_s: tuple[float, float]
    """Medians over the rounds."""
    ratio: float
    """Median of the rounds' ratios."""
    spread: tuple[float, float]
    """The smallest and the largest of them."""
    target: float
    batches: tuple[Batches, Batches]


def main(args: Sequence[str] | None = None) -> int:
    """Measure, print tables, and return 1 if a ratio is below its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [task.name for task in TASKS]
    parser.add_argument(
        "--tasks", nargs="*", choices=names, default=names, help="none: lengths only"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timings of each side, in turns")
    parser.add_argument("--threads", type=int, default=2, help="of both sides")
    parser.add_argument("--dropout", type=float, default=0.1, help="of both models")
    options = parser.parse_args(args)
    _silence()
    torch.set_num_threads(options.threads)
    results = []
    for kind in TASKS:
        if kind.name in options.tasks:
            with tempfile.TemporaryDirectory() as folder:
                results.append(_measure(kind(Path(folder), options.dropout), options.rounds))
            print(_row(results[-1]), flush=True)
    if results:
        print(f"\n{_table(results)}\n\n{_batches_table(results)}\n")
    if options.tasks in (names, []):
        print(efficiency_table())
    return int(any(result.ratio < result.target for result in results))


def _silence() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()


def _measure(task: Task, num_rounds: int) -> Result:
    """Time both sides in turns; each round has other batches."""
    sides = task.sides()
    batches = tuple(_batches(side, task.pad_ids) for side in sides)
    figures: list[dict[Any, float]] = []
    for epoch in range(num_rounds):
        order = sides if epoch % 2 else reversed(sides)
        figures.append(
            {id(side): side.fit(NUM_WARMUP_STEPS, task.num_steps, epoch) for side in order}
        )
    ours, theirs = ([figure[id(side)] for figure in figures] for side in sides)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Result(
        task.title,
        (median(ours), median(theirs)),
        median(ratios),
        (min(ratios), max(ratios)),
        task.target,
        batches,
    )


def _batches(side: RecipeSide | HuggingFaceSide, pad_ids: dict[str, int]) -> Batches:
    report = describe(side.loader(), pad_ids=pad_ids)
    tokens, places = (sum(column) for column in zip(*report.tokens.values(), strict=True))
    return Batches(report.num_batches, report.num_compilations, 1 - tokens / places)


def _table(results: Sequence[Result]) -> str:
    rows = [f"{'tokens a second':28}{_SIDES[0]:>10}{_SIDES[1]:>15}{'ratio':>8}{'target':>8}"]
    return "\n".join([*rows, *map(_row, results)])


def _row(result: Result) -> str:
    ours, theirs = result.tokens_per_s
    low, high = result.spread
    verdict = "" if result.ratio >= result.target else "  below"
    return (
        f"{result.title:28}{ours:10,.0f}{theirs:15,.0f}{result.ratio:8.2f}{result.target:8.2f}"
        f"  ({low:.2f} to {high:.2f}){verdict}"
    )


def _batches_table(results: Sequence[Result]) -> str:
    heads = (f"{name:>{width}}" for name, width in zip(_SIDES * 3, (9, 14) * 3, strict=True))
    rows = [
        f"{'in an epoch':28}{'shapes':>23}{'padding':>23}{'batches':>23}",
        f"{'':28}{''.join(heads)}",
    ]
    for result in results:
        ours, theirs = result.batches
        rows.append(
            f"{result.title:28}{ours.num_shapes:9}{theirs.num_shapes:14}"
            f"{ours.padding:9.1%}{theirs.padding:14.1%}"
            f"{ours.num_batches:9}{theirs.num_batches:14}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
