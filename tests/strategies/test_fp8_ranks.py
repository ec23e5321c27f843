"""Training in fp8 on several cards, held to one process with the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_gaudi.precision import HPUFP8Precision
from tests.fp8_cases import (
    Halves,
    RankedModel,
    fit,
    losses_of,
    scales_of,
    shared_scales,
    strategy_of,
)
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

NUM_STEPS = 6


def _train(rank: int, name: str) -> Any:
    model = RankedModel(reentrant=False, how=name if name in ("fsdp2", "tensors") else "whole")
    torch.manual_seed(5)
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=strategy_of(name),
        plugins=HPUFP8Precision("32-true"),
        max_steps=NUM_STEPS,
        use_distributed_sampler=False,
        **QUIET,
    )
    trainer.fit(model)
    plugin = trainer.precision_plugin
    (layers,) = plugin._layers
    minimizes = {each.engine.minimize_memory for each in layers.forwards.values()}
    return losses_of(model), shared_scales(scales_of(trainer)), type(plugin).__name__, minimizes


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ddp", "HPUFP8Precision"),
        ("fsdp2", "HPUFP8Precision"),
        pytest.param("fsdp", "HPUFSDPFP8Precision", marks=_SLOW),
        pytest.param("deepspeed_stage_1", "HPUDeepSpeedFP8Precision", marks=_SLOW),
        pytest.param("deepspeed_stage_3", "HPUDeepSpeedFP8Precision", marks=_SLOW),
    ],
)
def test_two_ranks_train_as_one(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its half of every batch, and the scales of the larger values of both.

    What is not in fp8 is in fp32: products in bf16 are rounded once more for each rank. Gradients
    are rounded to the nearest; at random, each card draws for itself.
    """
    monkeypatch.setenv("PT_TE_FORCE_SR_BWD", "0")
    found = run_trainers(_train, tmp_path, name, env={"PT_TE_FORCE_SR_BWD": "0"})
    (first, scales, *rest), (second, others, *_) = found
    model = Halves()
    expected = scales_of(fit(model, NUM_STEPS, plugins=HPUFP8Precision("32-true")))
    torch.testing.assert_close((first + second) / 2, losses_of(model), rtol=0, atol=1e-6)
    assert scales == others == shared_scales(expected)
    # Weights in shards are not kept in fp8 by whoever had them for a moment.
    assert rest == [kind, {name != "ddp"}]


def _split(rank: int) -> None:
    with pytest.raises(RuntimeError, match="split by tensor parallelism, in which there is no fp8"):
        _train(rank, "tensors")


@pytest.mark.slow
def test_layers_that_are_split_are_refused(tmp_path: Path) -> None:
    run_trainers(_split, tmp_path)
