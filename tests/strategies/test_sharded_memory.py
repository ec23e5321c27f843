"""Each card holds its share of the states, and little else: what sharding is for."""

from __future__ import annotations

import gc
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from lightning_gaudi._core import vendor
from tests.helpers.slow import SLOW
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

WIDTH, NUM_LAYERS, NUM_RANKS = 512, 6, 2  # DeepSpeed leaves tensors of below 100,000 whole
LAYER_BYTES = 4 * WIDTH * WIDTH
STRATEGIES = ("ddp", "deepspeed_stage_3", "fsdp", "FSDP2")


class Layers(pl.LightningModule):
    """Weights without biases; `states` is what a card holds after the last step, in bytes."""

    def setup(self, stage: str) -> None:
        gc.collect()
        self.before = vendor.memory_stats()["InUse"]

    def configure_model(self) -> None:
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for layer in [*self.net, self.net]:
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor) -> Tensor:
        return self.net(batch).float().square().mean()

    def on_train_batch_end(self, *args: Any) -> None:
        self.states = vendor.memory_stats()["InUse"] - self.before

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def _strategy(name: str) -> Any:
    if name == "fsdp":
        return FSDPStrategy(auto_wrap_policy={nn.Linear})
    return ModelParallelStrategy(NUM_RANKS, 1) if name == "FSDP2" else name


def _states(rank: int) -> dict[tuple[str, str], int]:
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        for name in STRATEGIES:
            module = Layers()
            trainer = pl.Trainer(
                accelerator="hpu",
                devices=NUM_RANKS,
                strategy=_strategy(name),
                precision=precision,
                max_steps=2,
                **QUIET,
            )
            trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, WIDTH), batch_size=2))
            found[precision, name] = module.states
            del module, trainer
    return found


@pytest.fixture(scope="module", **SLOW)
def states(tmp_path_factory: Any) -> list[dict[tuple[str, str], int]]:
    """What a card holds, in bytes, by precision and strategy; of each rank."""
    return run_trainers(_states, tmp_path_factory.mktemp("states"), num_ranks=NUM_RANKS)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", STRATEGIES[1:])
def test_a_card_holds_its_share_of_ddps_states_and_one_layer(
    states: list[dict[tuple[str, str], int]], name: str, precision: str
) -> None:
    for found in states:
        share = found[precision, "ddp"] / NUM_RANKS
        assert found[precision, name] <= 1.1 * share + LAYER_BYTES


def test_ddp_holds_weights_gradients_two_averages_and_a_bucket(
    states: list[dict[tuple[str, str], int]],
) -> None:
    for found in states:
        assert found["32-true", "ddp"] == pytest.approx(5 * NUM_LAYERS * LAYER_BYTES, rel=0.01)
