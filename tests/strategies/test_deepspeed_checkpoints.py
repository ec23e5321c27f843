"""Checkpoints in shards: what is saved goes on as if nothing had happened, on any strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lightning_gaudi.checkpoint.single_file import write_single_file
from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidated
from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import (
    NUM_BATCHES,
    Rich,
    evaluate,
    fit,
    zero,
)
from tests.strategies.sharded_cases import global_losses

pytestmark = pytest.mark.slow

KINDS = [(stage, precision) for stage in range(4) for precision in ("32-true", "bf16-true")]
"""Stages and precisions."""
Kind = tuple[int, str]


class Found(NamedTuple):
    """What a rank found with a stage in a precision."""

    losses: list[float]
    resumed: list[float]
    num_seen: int
    weights: dict[str, Tensor]
    """After the first epoch."""
    last: dict[str, Tensor]
    """After the second."""
    after: dict[str, Tensor]
    """Of what the Trainer saved when it had done with the second."""
    evaluated: float
    evaluated_whole: float
    from_whole: list[float]


def _save_and_load(rank: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {"ddp": _ddp(rank, folder)}
    for stage, precision in KINDS:
        found[stage, precision] = _of_stage(rank, folder, stage, precision)
    return found


def _random() -> Rich:
    return Rich(dropout=0.3)


def _ddp(rank: int, folder: Path) -> tuple[dict[str, Tensor], list[float], float]:
    """What ZeRO must come to: weights of DDP, its losses with a new optimizer, its evaluation."""
    model = _random()
    _, trainer = fit(rank, 2, model, max_epochs=1, strategy="ddp")
    trainer.save_checkpoint(folder / "ddp.ckpt")
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    if rank == 0:
        saved = torch.load(folder / "ddp.ckpt", weights_only=False)
        saved["optimizer_states"][0]["state"] = {}
        torch.save(saved, folder / "new.ckpt")
    trainer.strategy.barrier()
    losses, _ = fit(rank, 2, _random(), strategy="ddp", ckpt_path=f"{folder}/new.ckpt")
    return weights, losses, evaluate(rank, 2, f"{folder}/ddp.ckpt", strategy="ddp")


def _of_stage(rank: int, folder: Path, stage: int, precision: str) -> Found:
    def settings() -> dict[str, Any]:
        return zero(stage, precision=precision)

    home = folder / f"{stage}-{precision}"
    first = home / "epoch=0.ckpt"
    losses, _ = fit(rank, 2, _random(), checkpoints=home, **settings())
    model = _random()
    resumed, trainer = fit(rank, 2, model, ckpt_path=str(first), **settings())
    trainer.save_checkpoint(home / "after.ckpt")
    whole, key = consolidated(first)
    if rank == 0:
        write_single_file(whole, key, home / "whole.ckpt")
    trainer.strategy.barrier()
    from_whole, _ = fit(rank, 2, _random(), ckpt_path=f"{folder}/ddp.ckpt", **settings())
    return Found(
        losses,
        resumed,
        int(model.seen.item()),
        whole[key],
        consolidated(home / "epoch=1.ckpt")[0][key],
        consolidated(home / "after.ckpt")[0][key],
        evaluate(rank, 2, str(first), **settings()),
        evaluate(rank, 2, f"{home}/whole.ckpt", **settings()),
        from_whole,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[Any, Any]]:
    """What each rank found."""
    return run_trainers(_save_and_load, folder, folder)


def _kinds(rank: dict[Any, Any]) -> list[Kind]:
    return [kind for kind in rank if kind != "ddp"]


def _assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.equal(found[name], each.cpu()), name


def test_resumed_losses_are_the_same_bits_with_dropout(ranks: Any) -> None:
    for rank in ranks:
        for kind in _kinds(rank):
            found = rank[kind]
            assert len(found.resumed) == NUM_BATCHES
            assert found.resumed == found.losses[NUM_BATCHES:], kind
            assert found.num_seen == 2 * NUM_BATCHES, kind


def test_consolidated_weights_are_those_of_ddp(ranks: Any) -> None:
    expected, _, _ = ranks[0]["ddp"]
    for kind in _kinds(ranks[0]):
        if kind[1] == "32-true":
            _assert_same(ranks[0][kind].weights, expected)


def test_consolidated_weights_are_in_fp32(ranks: Any) -> None:
    for kind in _kinds(ranks[0]):
        dtypes = {name: each.dtype for name, each in ranks[0][kind].weights.items()}
        assert dtypes.pop("seen") == torch.int64
        assert set(dtypes.values()) == {torch.float32}


def test_a_checkpoint_saved_after_the_training_is_the_one_of_its_end(ranks: Any) -> None:
    for kind in _kinds(ranks[0]):
        _assert_same(ranks[0][kind].after, ranks[0][kind].last)


def test_a_checkpoint_in_shards_can_be_evaluated(ranks: Any) -> None:
    for rank in ranks:
        for kind in _kinds(rank):
            if kind[1] == "32-true":
                assert rank[kind].evaluated == rank["ddp"][2], kind
            assert rank[kind].evaluated == pytest.approx(rank["ddp"][2], abs=1e-2)


def test_a_consolidated_checkpoint_evaluates_as_its_shards_do(ranks: Any) -> None:
    for rank in ranks:
        for kind in _kinds(rank):
            assert rank[kind].evaluated_whole == rank[kind].evaluated, kind


def test_training_goes_on_from_a_checkpoint_of_ddp_with_a_new_optimizer(ranks: Any) -> None:
    for kind in _kinds(ranks[0]):
        tolerance = 1e-6 if kind[1] == "32-true" else 3e-2
        found = global_losses([rank[kind].from_whole for rank in ranks])
        expected = global_losses([rank["ddp"][1] for rank in ranks])
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=str(kind))
