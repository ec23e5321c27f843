"""HCCL between the cards of this server: one run, each of its checks a test here."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from lightning_gaudi._core import vendor

from .collectives import CHECKS
from .torchrun import need_cards, torchrun

Results = list[dict[str, str | None]]
"""Of each rank: name of a check -> what went wrong, or None."""


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(0, marks=pytest.mark.slow)],
    ids=["two-cards", "all-cards"],
)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    need_cards(2)
    num_ranks = request.param or vendor.num_visible_cards()
    return _run(num_ranks, tmp_path_factory.mktemp(f"ranks{num_ranks}"))


@cache
def _run(num_ranks: int, folder: Path) -> Results:
    failure = None
    try:
        torchrun("tests.contract.several_cards.collectives", folder, num_ranks=num_ranks)
    except AssertionError as error:
        failure = str(error)
    files = [folder / f"rank{rank}.jsonl" for rank in range(num_ranks)]
    if failure is not None and not any(file.exists() for file in files):
        pytest.fail(f"no rank came to its first check: {failure}", pytrace=False)
    found: Results = []
    for file in files:
        lines = file.read_text().splitlines() if file.exists() else []
        done = dict(json.loads(line) for line in lines)
        found.append({name: done.get(name, f"not reached: {failure}") for name in CHECKS})
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_collective(name: str, results: Results) -> None:
    failures = [f"rank {rank}: {done[name]}" for rank, done in enumerate(results) if done[name]]
    assert not failures, "\n".join(failures)
