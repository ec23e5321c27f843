"""The losses of FSDP2, of tensor parallelism and of both are those of DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import (
    BF16,
    LAYOUTS,
    PreciseParallel,
    PreciseStack,
    with_large_batches,
)
from tests.strategies.sharded_cases import CASES, global_losses

pytestmark = pytest.mark.slow

NUM_RANKS = (2, pytest.param(4, marks=pytest.mark.slow))
LOW_PRECISION = {"bf16-mixed": "adamw", "bf16-true": "sgd_accumulated_clipped_scheduled"}
"""Of each precision, the case that is trained."""

Losses = dict[tuple[str, ...], list[float]]


def _fit(rank: int, num_ranks: int) -> dict[str, Any]:
    losses: Losses = {}
    dtypes: dict[tuple[str, ...], set[torch.dtype]] = {}
    for name, case in CASES.items():
        losses["32-true", name, "ddp"] = case.fit(num_ranks, strategy="ddp")[0]
        for key, layout in LAYOUTS[num_ranks].items():
            losses["32-true", name, key] = layout.fit(case)[0]
    with pytest.MonkeyPatch.context() as patch:
        with_large_batches(patch)
        for precision, name in LOW_PRECISION.items():
            case, settings = CASES[name], {"precision": precision}
            model = PreciseStack(case.optimizer)
            ddp = case.fit(num_ranks, model=model, strategy="ddp", **settings)
            losses[precision, name, "ddp"] = ddp[0]
            for key, layout in BF16[num_ranks].items():
                found, trainer = layout.fit(case, kind=PreciseParallel, **settings)
                losses[precision, name, key] = found
                dtypes[precision, name, key] = _held(trainer)
    return {"losses": losses, "dtypes": dtypes}


def _held(trainer: Any) -> set[torch.dtype]:
    """The dtypes of the weights and of the optimizer's averages."""
    (optimizer,) = trainer.optimizers
    averages = [state["exp_avg"] for state in optimizer.state.values() if "exp_avg" in state]
    return {tensor.dtype for tensor in [*trainer.model.parameters(), *averages]}


@pytest.fixture(scope="module", params=NUM_RANKS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: Any) -> list[dict[str, Any]]:
    num = request.param
    return run_trainers(_fit, tmp_path_factory.mktemp("ranks"), num, num_ranks=num)


def _losses(ranks: list[dict[str, Any]], *key: str) -> Tensor:
    return global_losses([found["losses"][key] for found in ranks])


def _keys(ranks: list[dict[str, Any]], *precisions: str) -> list[tuple[str, ...]]:
    keys = [key for key in ranks[0]["losses"] if key[0] in precisions and key[2] != "ddp"]
    assert keys
    return keys


def test_losses_in_fp32_are_those_of_ddp(ranks: list[dict[str, Any]]) -> None:
    for key in _keys(ranks, "32-true"):
        found, expected = _losses(ranks, *key), _losses(ranks, *key[:2], "ddp")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, msg=str(key))


def test_losses_in_bf16_are_those_of_ddp_in_bf16(ranks: list[dict[str, Any]]) -> None:
    """Tensor parallelism rounds parts of sums that one card rounds once."""
    for key in _keys(ranks, *LOW_PRECISION):
        found, expected = _losses(ranks, *key), _losses(ranks, *key[:2], "ddp")
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-3, msg=str(key))


def test_fsdp2_under_autocast_is_ddp_under_autocast_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for key in _keys(ranks, "bf16-mixed"):
        if key[2] == "fsdp2":
            assert torch.equal(_losses(ranks, *key), _losses(ranks, *key[:2], "ddp")), key


def test_bf16_mixed_holds_fp32_and_bf16_true_holds_bf16(ranks: list[dict[str, Any]]) -> None:
    for key, found in ranks[0]["dtypes"].items():
        assert found == {torch.float32 if key[0] == "bf16-mixed" else torch.bfloat16}, key
