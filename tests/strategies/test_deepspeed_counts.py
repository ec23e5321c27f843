"""What a step with DeepSpeed in a Trainer does beyond DeepSpeed's own: nothing that waits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor

from lightning_gaudi.deepspeed.config.load import Settings, complete
from lightning_gaudi.deepspeed.engine.initialize import make_engine
from lightning_gaudi.simulator import collective_stats, host_syncs
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import NUM_STEPS, Case, Stack, loader, make_net

NUM_RANKS = 2
WARM = 4
"""Batches after which ZeRO-3 has seen the order of the layers."""

Counts = Counter[str]
PRECISIONS = ("32-true", "bf16-mixed")
STAGES = (0, 1, 2, 3)
WINDOW = 2


class CountingStack(Stack):
    """Notes at the start of each step what was counted so far."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[Counts] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.counts.append(_counts())
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


def _counts() -> Counts:
    counts = Counter({f"sync {reason}": count for reason, count in host_syncs().items()})
    for kind, stats in collective_stats().items():
        counts[kind] = stats["calls"]
        counts[f"{kind} bytes"] = stats["bytes"]
    return counts


def _steps(counts: list[Counts]) -> list[Counts]:
    return [after - before for before, after in pairwise(counts)][WARM:]


def _in_trainer(config: dict[str, Any], precision: str) -> list[Counts]:
    settings = {"accumulate_grad_batches": WINDOW, "gradient_clip_val": 0.3}
    model = CountingStack()
    strategy = DeepSpeedStrategy(config=config)
    Case("adamw", settings).fit(NUM_RANKS, model=model, strategy=strategy, precision=precision)
    return _steps(model.counts)


def _in_bare_loop(config: dict[str, Any], precision: str, rank: int) -> list[Counts]:
    """As DeepSpeed's documentation has it, which does the accumulation."""
    net = make_net()
    completed = complete(config, Settings(precision, NUM_RANKS, WINDOW, 0.3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    engine, _ = make_engine(net, completed, optimizer=optimizer)
    dtype = torch.float32 if precision == "32-true" else torch.bfloat16
    counts, losses = [], []
    for batch in loader(rank, NUM_RANKS):
        features, target = (each.to("hpu", dtype) for each in batch)
        counts.append(_counts())
        loss = (engine(features).float() - target.float()).pow(2).mean()
        losses.append(loss.detach().clone())
        engine.backward(loss)
        engine.step()
    return _steps(counts)


def _count(rank: int) -> dict[tuple[int, str], tuple[list[Counts], list[Counts]]]:
    found = {}
    for stage in STAGES:
        for precision in PRECISIONS:
            config = {
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
            }
            found[stage, precision] = (
                _in_trainer(config, precision),
                _in_bare_loop(config, precision, rank),
            )
    return found


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[int, str], Any]]:
    return run_trainers(_count, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_trainer_adds_nothing_to_what_deepspeed_waits_for_and_sends(
    ranks: Any, stage: int, precision: str
) -> None:
    for counted in ranks:
        trainer, bare = counted[stage, precision]
        assert len(trainer) == len(bare) == NUM_STEPS - 1 - WARM
        assert any(step["all_reduce"] or step["reduce_scatter"] for step in trainer)
        for batch_idx, (ours, theirs) in enumerate(zip(trainer, bare, strict=True), WARM):
            assert ours == theirs, f"batch {batch_idx}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_batches_that_do_not_end_an_accumulation_wait_for_nothing(
    ranks: Any, stage: int, precision: str
) -> None:
    for counted in ranks:
        trainer, _ = counted[stage, precision]
        waits = [sum(n for name, n in step.items() if name.startswith("sync")) for step in trainer]
        assert waits[0::WINDOW] == [0] * len(waits[0::WINDOW])
