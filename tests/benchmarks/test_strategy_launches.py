"""A recipe's step launches no more than its strategy's limit, and what is left does not grow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import strategy_launches
from benchmarks.strategy_launches import cases, cases_in_fabric, fit, fit_in_fabric
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers

_STRATEGIES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP", "tensor parallel")
KEPT = [f"T5: {name}" for name in _STRATEGIES]
LEFT = {"T5: FSDP2": 84, "T5 in Fabric: DDP": 161}
"""Launches of the cases that exceed the limit: docs/explanation/launches.md says why."""


def _count(rank: int) -> dict[str, Counter[str]]:
    found = {}
    with strategy_launches.graph_runs_counted():
        for title, recipe, arguments, num_devices in cases():
            if title in (*KEPT, *LEFT):
                found[title] = fit(recipe, arguments, num_devices)
        for title, strategy, num_devices in cases_in_fabric():
            if title in (*KEPT, *LEFT):
                found[title] = fit_in_fabric("t5_summarization", strategy, num_devices)
    return found


@pytest.fixture(scope="module", **SLOW)
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of T5's steps on two cards, by title."""
    found = run_trainers(_count, tmp_path_factory.mktemp("ranks"), timeout=900)[0]
    return {title: strategy_launches.row(title, counts) for title, counts in found.items()}


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("title", KEPT)
def test_a_step_launches_no_more_than_its_limit(rows: dict[str, Any], title: str) -> None:
    assert rows[title].figure <= rows[title].limit


@pytest.mark.parametrize(("title", "most"), LEFT.items())
def test_what_exceeds_the_limit_does_not_grow(rows: dict[str, Any], title: str, most: int) -> None:
    assert rows[title].limit < rows[title].figure <= most
