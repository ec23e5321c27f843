"""What is planned for recipes and examples is what a card that computes takes.

`python -m tests.tools.plan.peaks` prints all of it, base sizes too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.plan.peaks import EXAMPLES, RUNS, Run, of_example, of_recipe

SMALL = [run for run in RUNS if not run.is_large]

OWN = 5_767_296
"""What the card's allocator takes for itself from the start, which would hide a difference."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # five minutes beside other tests


@pytest.mark.parametrize("given", SMALL, ids=lambda run: f"{run.name}, {run.strategy}")
def test_recipes_take_what_is_planned(given: Run, tmp_path: Path) -> None:
    planned, measured = of_recipe(given, tmp_path)
    assert planned - OWN == pytest.approx(measured - OWN, rel=0.05)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_take_what_is_planned(name: str, tmp_path: Path) -> None:
    planned, measured = of_example(name, tmp_path)
    assert planned - OWN == pytest.approx(measured - OWN, rel=0.05)
