"""The losses of ZeRO's stages are those of DDP, with the gradients of any schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor

from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import CASES, Case, LateStack, Stack, global_losses

pytestmark = pytest.mark.slow

STAGES = (0, 1, 2, 3)
IN_BF16 = [*((stage, "bf16-mixed") for stage in STAGES), (3, "bf16-true")]
TRAININGS = [*((stage, "32-true") for stage in STAGES), *IN_BF16]
SGD = "sgd_accumulated_clipped_scheduled"
SLOW = [(2, "adamw"), (4, SGD), (4, "adamw")]
RUNS = [(2, SGD), *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
"""Numbers of ranks, each with the case that they train."""
UNEVEN = Case("sgd", {"accumulate_grad_batches": 4, "max_epochs": 2})
"""Ten batches in windows of four: each epoch ends with one of two.

Without clipping, which would hide gradients that are divided twice.
"""
BUCKETS = [(1, 1200), (2, 1200), (2, 700), (3, 1200)]
"""Stages, each with a bucket of a few weights; the largest, of 1,024 elements, is above the 700."""
Losses = dict[Any, list[float]]


class MasterStack(Stack):
    """Weights and gradients in bf16, and an optimizer with weights of its own in fp32.

    Trained by DDP in bf16-true, it is what ZeRO in bf16 is, without ZeRO.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case.optimizer)
        self.clip = case.settings.get("gradient_clip_val")

    def configure_optimizers(self) -> Any:
        found = super().configure_optimizers()
        optimizer = found[0][0] if isinstance(found, tuple) else found
        (group,) = optimizer.param_groups
        self.pairs = [(each, each.detach().float().requires_grad_()) for each in group["params"]]
        group["params"] = [master for _, master in self.pairs]
        return found

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        def closure() -> Any:
            loss = optimizer_closure()
            for weight, master in self.pairs:
                assert weight.grad is not None
                master.grad = weight.grad.float()
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_([master for _, master in self.pairs], self.clip)
            return loss

        optimizer.step(closure=closure)
        for weight, master in self.pairs:
            weight.data.copy_(master.data)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        for weight, _ in self.pairs:
            weight.grad = None


def _train(rank: int, num_ranks: int, name: str) -> Losses:
    case = CASES[name]
    losses: Losses = {"ddp": case.fit(num_ranks, strategy="ddp")[0]}
    settings = {"strategy": "ddp", "precision": "bf16-true", "gradient_clip_val": None}
    losses["bf16"] = case.fit(num_ranks, model=MasterStack(case), **settings)[0]
    for stage, precision in TRAININGS:
        losses[stage, precision] = case.fit(
            num_ranks, strategy=DeepSpeedStrategy(stage=stage), precision=precision
        )[0]
    for stage, size in BUCKETS:
        strategy = DeepSpeedStrategy(stage=stage, reduce_bucket_size=size)
        losses["buckets", stage, size] = case.fit(num_ranks, strategy=strategy)[0]
    late = LateStack(case.optimizer)
    losses["late"] = case.fit(num_ranks, model=late, strategy="deepspeed_stage_3")[0]
    losses["uneven", "ddp"] = UNEVEN.fit(num_ranks, strategy="ddp")[0]
    for stage in (1, 3):
        losses["uneven", stage] = UNEVEN.fit(num_ranks, strategy=DeepSpeedStrategy(stage=stage))[0]
    return losses


@dataclass(frozen=True)
class Run:
    """What came of a case."""

    num_ranks: int
    name: str
    losses: dict[Any, Tensor]
    """The loss of each step on the whole batch, of each training."""


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: f"{run[0]}-{run[1]}", name="run")
def _run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    num, name = request.param
    found = run_trainers(_train, tmp_path_factory.mktemp("ranks"), num, name, num_ranks=num)
    return Run(num, name, {key: global_losses([rank[key] for rank in found]) for key in found[0]})


def _assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert expected[0] - expected[-1] > 0.5, "nothing was learnt"
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("stage", STAGES)
def test_losses_are_those_of_ddp(run: Run, stage: int) -> None:
    _assert_near(run.losses[stage, "32-true"], run.losses["ddp"], 1e-6)


@pytest.mark.parametrize(("stage", "size"), BUCKETS)
def test_losses_of_many_buckets_are_those_of_ddp(run: Run, stage: int, size: int) -> None:
    _assert_near(run.losses["buckets", stage, size], run.losses["ddp"], 1e-6)


@pytest.mark.parametrize(("stage", "precision"), IN_BF16)
def test_losses_in_bf16_are_those_of_ddp_in_bf16_with_masters_in_fp32(
    run: Run, stage: int, precision: str
) -> None:
    """The same bits, but where sums are rounded another way.

    ZeRO-2 and 3 reduce each batch of an accumulation, and with more than two ranks the order in
    which gradients are added is not DDP's.
    """
    is_reduced_in_parts = stage > 1 and run.name != "adamw"
    is_ordered = run.num_ranks > 2
    tolerance = 4e-3 if is_reduced_in_parts or is_ordered else 0.0
    _assert_near(run.losses[stage, precision], run.losses["bf16"], tolerance)


def test_layers_made_in_shards_train_alike(run: Run) -> None:
    _assert_near(run.losses["late"], run.losses["ddp"], 1e-6)


@pytest.mark.parametrize("stage", [1, 3])
def test_an_epoch_may_end_within_an_accumulation(run: Run, stage: int) -> None:
    """As with DDP the step is taken there; DeepSpeed's own count would go on to the next epoch.

    And gradients are divided by the number of batches once: DeepSpeed would do so again.
    """
    _assert_near(run.losses["uneven", stage], run.losses["uneven", "ddp"], 1e-6)
