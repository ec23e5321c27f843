"""HCCL between the cards of this server, under torchrun; each of its checks is a test here.

The fast tests have the same checks between the ranks that Lightning starts, in test_ddp.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lightning_gaudi._core import vendor

from .collectives import CHECKS, Results, expect_success, read_results
from .torchrun import need_cards, torchrun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 0], ids=["two-cards", "all-cards"])
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
    if failure is not None and not any(folder.iterdir()):
        pytest.fail(f"no rank came to its first check: {failure}", pytrace=False)
    return read_results(folder, num_ranks, failure)


@pytest.mark.parametrize("name", CHECKS)
def test_collective(name: str, results: Results) -> None:
    expect_success(name, results)
