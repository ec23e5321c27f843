"""The weights after training on several cards are those of one process on the whole batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import CASES, LOW_PRECISION, SEED, Case

ALL = CASES | LOW_PRECISION
NUM_RANKS = (2, *(pytest.param(num, marks=pytest.mark.slow) for num in (4, 8)))
Weights = dict[str, Tensor]


def _fit(rank: int, num_ranks: int) -> dict[str, Weights]:
    return {name: _weights(case, num_ranks) for name, case in ALL.items()}


def _weights(case: Case, num_ranks: int, **settings: Any) -> Weights:
    return case.fit(num_ranks, **settings)[0].state_dict()


@pytest.fixture(scope="module", params=NUM_RANKS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: Any) -> list[dict[str, Weights]]:
    """The weights of all cases on each rank."""
    num = request.param
    return run_trainers(_fit, tmp_path_factory.mktemp("ranks"), num, num_ranks=num)


@cache
def _on_cpu(name: str) -> Weights:
    return _weights(ALL[name], 1, accelerator="cpu")


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_cpu_on_the_whole_batch(
    ranks: list[dict[str, Weights]], name: str
) -> None:
    for key, expected in _on_cpu(name).items():
        torch.testing.assert_close(ranks[0][name][key], expected, rtol=0, atol=1e-6, msg=key)


@pytest.mark.parametrize(("name", "tolerance"), [("bf16-mixed", 0.01), ("bf16-true", 0.03)])
def test_weights_in_bf16_are_those_of_the_cpu_but_for_its_rounding(
    ranks: list[dict[str, Weights]], name: str, tolerance: float
) -> None:
    """Off by a part of the way that the weights went.

    A gradient has 8 bits, and is rounded by each rank: 2^-8 or 0.4%. In bf16-true the weights too
    are rounded, after each step: together 1.2%. The tolerances leave a factor of two.
    """
    case, expected = ALL[name], _on_cpu(name)
    torch.manual_seed(SEED)
    start = case.model(*case.args).state_dict()
    off, moved = (
        torch.cat([(weights[key].float() - expected[key].float()).flatten() for key in expected])
        for weights in (ranks[0][name], start)
    )
    assert 0 < off.norm() < tolerance * moved.norm()


@pytest.mark.parametrize("name", ALL)
def test_weights_of_all_ranks_are_the_same_bits(ranks: list[dict[str, Weights]], name: str) -> None:
    for rank, found in enumerate(ranks):
        for key, first in ranks[0][name].items():
            assert torch.equal(found[name][key], first), f"{key} of rank {rank}"
