"""What a step with DeepSpeed in a Trainer does beyond DeepSpeed's own: nothing that waits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor

from lightning_gaudi._patches.optimizers import step_adam_by_kernel
from lightning_gaudi.compilation.compiler import stepping_at_once
from lightning_gaudi.deepspeed.config.load import Settings, complete
from lightning_gaudi.deepspeed.engine.initialize import make_engine
from lightning_gaudi.deepspeed.engine.memory import LIGHTNINGS_BUCKET
from lightning_gaudi.simulator import collective_stats, host_syncs, launches
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import NUM_STEPS, Case, Stack, loader, make_net

NUM_RANKS = 2
WARM = 4
"""Batches after which ZeRO-3 has seen the order of the layers."""

LAYERS = (2, 8)
MOST = 12
"""Launches of a step beside the model's own: a bucket, the norm, clipping, and the optimizer."""

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


def _launches_beside_the_model(stage: int, num_layers: int) -> list[int]:
    """What each step launches more than forward and backward do without an engine."""
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(num_layers))).to("hpu")
    batch = torch.ones(4, 8, device="hpu")
    before = launches()
    net(batch).square().mean().backward()
    of_model = launches() - before
    net.zero_grad()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    zero = {"stage": stage, "reduce_bucket_size": LIGHTNINGS_BUCKET}
    config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
    completed = complete(config, Settings("32-true", NUM_RANKS, 1, 0.3))
    engine, _ = make_engine(net, completed, optimizer=optimizer)
    counts = [launches()]
    for _ in range(NUM_STEPS):
        engine.backward(engine(batch).square().mean())
        with stepping_at_once(engine.optimizer):
            engine.step()
        counts.append(launches())
    return [after - before - of_model for before, after in pairwise(counts)]


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
        step_adam_by_kernel(True)
        found[stage, "launches"] = {
            num: _launches_beside_the_model(stage, num)[WARM:] for num in LAYERS
        }
        step_adam_by_kernel(False)
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


@pytest.mark.parametrize("stage", STAGES[1:])
def test_launches_do_not_grow_with_the_number_of_weights(ranks: Any, stage: int) -> None:
    for counted in ranks:
        few, many = (counted[stage, "launches"][num] for num in LAYERS)
        # Where the norm is below the limit, nothing is divided.
        assert all(counts[-1] == MOST - 1 and max(counts) <= MOST for counts in (few, many))


class Experts(torch.nn.Module):
    """Multiplies by parts of one weight, and by its transpose."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0))
        self.weight = torch.nn.Parameter(drawn / 32)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.weight:
            x = x + torch.nn.functional.linear(x, part).tanh() @ part.t()
        return x


def _train_experts(rank: int) -> dict[str, Any]:
    """What is in use between forward and backward, and the weights after some steps."""
    found: dict[str, Any] = {}
    torch.distributed.init_process_group("hccl", rank=rank, world_size=NUM_RANKS)
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    for name, device in (("cpu", "cpu"), ("hpu", "hpu")):
        net: Any = torch.nn.Sequential(*(Experts() for _ in range(6)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        zero = {"stage": 3, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
        zero |= {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0}
        config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
        if device == "hpu":
            completed = complete(config, Settings("32-true", NUM_RANKS, 1, None))
            engine, _ = make_engine(net, completed, optimizer=optimizer)
        losses = []
        for _ in range(4):
            before = torch.hpu.memory_allocated()
            loss = (engine if device == "hpu" else net)(batch.to(device)).square().mean()
            found["kept"] = torch.hpu.memory_allocated() - before
            losses.append(loss.detach().cpu())
            if device == "hpu":
                engine.backward(loss)
                engine.step()
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        found[name] = torch.stack(losses)
    return found


@pytest.mark.slow
def test_views_of_weights_do_not_keep_them_gathered(tmp_path: Path) -> None:
    for found in run_trainers(_train_experts, tmp_path):
        torch.testing.assert_close(found["hpu"], found["cpu"], rtol=1e-6, atol=1e-7)
        assert found["hpu"][-1] < found["hpu"][0]
        # Of six weights the last may be there, beside activations of a hundredth of a weight each.
        assert found["kept"] < 3 * 4 * (4 * 64 * 64)
