"""A checkpoint in shards goes on with another number of cards than it was saved from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import NUM_BATCHES, Rich, fit, zero
from tests.strategies.sharded_cases import global_losses

pytestmark = pytest.mark.slow

KINDS = [*((stage, "32-true") for stage in range(4)), (2, "bf16-true"), (3, "bf16-true")]
"""Stages and precisions."""
SGD = "with momentum"


def _save(rank: int, folder: Path) -> dict[Any, Any]:
    found = {}
    for stage, precision in KINDS:
        model = Rich()
        with torch.no_grad():
            model.net[2].norm.weight.fill_(1.5)  # frozen
        home = folder / f"{stage}-{precision}"
        found[stage, precision], _ = fit(
            rank, 2, model, checkpoints=home, **zero(stage, precision=precision)
        )
    for stage in {stage for stage, _ in KINDS}:
        fit(rank, 2, Rich("sgd"), max_epochs=1, checkpoints=folder / f"{stage}-sgd", **zero(stage))
    return found


def _go_on(rank: int, num_ranks: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for stage, precision in KINDS:
        model, path = Rich(), folder / f"{stage}-{precision}" / "epoch=0.ckpt"
        losses, _ = fit(
            rank, num_ranks, model, ckpt_path=str(path), **zero(stage, precision=precision)
        )
        # All of the folder is what it was.
        found[stage, precision] = losses, int(model.seen.item()), sorted(map(str, path.iterdir()))
    for stage in {stage for stage, _ in KINDS}:
        path = folder / f"{stage}-sgd" / "epoch=0.ckpt"
        try:
            found[SGD, stage], _ = fit(
                rank, num_ranks, Rich("sgd"), ckpt_path=str(path), **zero(stage)
            )
        except ValueError as error:
            found[SGD, stage] = str(error)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> tuple[Path, dict[Any, Tensor]]:
    """Where two ranks have saved, and the losses of the whole batches by kind."""
    folder = tmp_path_factory.mktemp("saved")
    ranks = run_trainers(_save, folder, folder)
    losses = {kind: global_losses([rank[kind] for rank in ranks]) for kind in ranks[0]}
    return folder, losses


@pytest.mark.parametrize("num_ranks", [4, 1])
def test_training_goes_on_where_it_was_with_adam_alone(
    saved: Any, num_ranks: int, tmp_path: Path
) -> None:
    folder, expected = saved
    ranks = run_trainers(_go_on, tmp_path, num_ranks, folder, num_ranks=num_ranks)
    for kind in KINDS:
        tolerance = 1e-6 if kind[1] == "32-true" else 3e-2
        losses = global_losses([rank[kind][0] for rank in ranks])
        torch.testing.assert_close(
            losses, expected[kind][NUM_BATCHES:], rtol=0, atol=tolerance, msg=str(kind)
        )
        for rank in ranks:
            assert rank[kind][1] == 2 * NUM_BATCHES
            assert not [name for name in rank[kind][2] if "universal" in name]
    for rank in ranks:
        for stage in {stage for stage, _ in KINDS}:
            found = rank[SGD, stage]
            if stage == 0:  # nothing is in shards
                assert len(found) == NUM_BATCHES
            else:
                assert f"2 ranks, this run has {num_ranks}" in found
                assert "is momentum_buffer" in found
