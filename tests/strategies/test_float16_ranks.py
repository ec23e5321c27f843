"""Training in float16 on several cards: whoever overflows, all leave the step out."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from lightning_gaudi import vendor
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import loader

NUM_RANKS = 2
NUM_STEPS = 6
CLIP = 0.5
SCALE = 2.0**10
OVERFLOW_AT = 2
"""The step in which one rank's gradients overflow, whatever the scale."""


class Model(pl.LightningModule):
    """Three layers; notes losses and scales, and waits of each step."""

    def __init__(self, shards: str = "none") -> None:
        super().__init__()
        self.shards = shards
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 1)
        self.losses: list[float] = []
        self.scales: list[float] = []

    def configure_model(self) -> None:
        if self.shards == "fsdp2":
            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.net, mesh=mesh)
            fully_shard(self.head, mesh=mesh)
        elif self.shards == "tensors":
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.net, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        scores = self.head(self.net(batch[0])).float()
        loss = functional.mse_loss(scores, batch[1])
        self.losses.append(loss.item())
        # In float32 nothing leaves the step out, and such a loss ends the run.
        is_half = self.trainer.precision == "16-mixed"
        is_here = self.shards == "tensors" or self.global_rank == 0
        return loss * 1e30 * 1e9 if is_half and is_here and batch_idx == OVERFLOW_AT else loss

    def on_train_batch_end(self, *args: Any) -> None:
        plugin: Any = self.trainer.strategy.precision_plugin
        if getattr(plugin, "scaler", None) is not None:
            self.scales.append(plugin.scaler.get_scale())
        elif plugin.precision == "16-mixed":
            self.scales.append(self.trainer.strategy.model.optimizer.cur_scale)  # type: ignore[union-attr]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


CASES: dict[str, tuple[str, Any]] = {
    "ddp": ("none", "ddp"),
    "fsdp": ("none", "fsdp"),
    "fsdp2": ("fsdp2", lambda: ModelParallelStrategy(NUM_RANKS, 1)),
    "tensors": ("tensors", lambda: ModelParallelStrategy(1, NUM_RANKS)),
    "deepspeed_stage_1": ("none", "deepspeed_stage_1"),
    "deepspeed_stage_2": ("none", "deepspeed_stage_2"),
    "deepspeed_stage_3": ("none", "deepspeed_stage_3"),
}


def _fit(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (shards, strategy) in CASES.items():
        for precision in ("16-mixed", "32-true"):
            model = Model(shards)
            trainer = pl.Trainer(
                accelerator="hpu",
                devices=NUM_RANKS,
                strategy=strategy if isinstance(strategy, str) else strategy(),
                precision=precision,  # type: ignore[arg-type]
                max_steps=NUM_STEPS,
                gradient_clip_val=CLIP,
                use_distributed_sampler=False,
                **QUIET,
            )
            is_alike = name == "tensors"
            data = loader(0, 1, NUM_STEPS) if is_alike else loader(rank, NUM_RANKS, NUM_STEPS)
            before = vendor.metric("cpu_fallback")["TotalNumber"]  # type: ignore[index]
            trainer.fit(model, data)
            after = vendor.metric("cpu_fallback")["TotalNumber"]  # type: ignore[index]
            found[name, precision] = (model.losses, model.scales, after - before)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_trainers(_fit, tmp_path_factory.mktemp("ranks"), num_ranks=NUM_RANKS, timeout=500)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_float32_until_a_step_is_left_out(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for facts in ranks:
        half, _, fallbacks = facts[name, "16-mixed"]
        whole, _, _ = facts[name, "32-true"]
        assert half[0] == pytest.approx(whole[0], rel=2e-2)
        assert all(loss < float("inf") for loss in half)
        assert fallbacks == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_ranks_leave_the_same_step_out(ranks: list[dict[str, Any]], name: str) -> None:
    scales = [facts[name, "16-mixed"][1] for facts in ranks]
    assert scales[0] == scales[1]
    if not name.startswith("deepspeed"):  # whose scale begins elsewhere, and waits before it halves
        assert scales[0][OVERFLOW_AT] == scales[0][OVERFLOW_AT - 1] / 2
