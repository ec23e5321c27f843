"""What a user's own `torch.compile(model)` gives under FSDP and FSDP2, in Fabric and Trainer."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from lightning_gaudi.fabric import strategies as of_fabric
from lightning_gaudi.strategies import HPUFSDPStrategy
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import loader

pytestmark = pytest.mark.filterwarnings("default")

NUM_RANKS = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).tanh()


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 1))


def _shard(module: nn.Module, mesh: Any) -> nn.Module:
    for each in module.modules():
        if isinstance(each, Block):
            fully_shard(each, mesh=mesh["data_parallel"])
    return fully_shard(module, mesh=mesh["data_parallel"])


def _strategy(name: str) -> Any:
    if name == "fsdp2":
        return of_fabric.HPUModelParallelStrategy(_shard, NUM_RANKS, 1)
    sharding = "HYBRID_SHARD" if name == "hybrid" else "FULL_SHARD"
    return of_fabric.HPUFSDPStrategy(auto_wrap_policy={Block}, sharding_strategy=sharding)


def _losses(rank: int, name: str, is_compiled: bool) -> list[float]:
    fabric = Fabric(accelerator="hpu", devices=NUM_RANKS, strategy=_strategy(name))
    fabric.launch()
    net: Any = _net()
    model: Any = fabric.setup_module(torch.compile(net) if is_compiled else net)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.05))
    losses = []
    for batch in loader(rank, NUM_RANKS, 4):
        loss = (model(batch[0].to("hpu")) - batch[1].to("hpu")).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = _net()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.losses.append(loss.detach())  # type: ignore[arg-type]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def _trained(rank: int, is_compiled: bool) -> list[float]:
    module = Module()
    strategy = HPUFSDPStrategy(auto_wrap_policy={Block})
    place = {"accelerator": "hpu", "devices": NUM_RANKS, "strategy": strategy, "max_epochs": 1}
    trainer = pl.Trainer(**place, **QUIET, use_distributed_sampler=False)
    trainer.fit(torch.compile(module) if is_compiled else module, loader(rank, NUM_RANKS, 4))
    return [float(loss) for loss in module.losses]


@pytest.mark.slow
def test_fabric_trains_a_compiled_module_under_fsdp(tmp_path: Any) -> None:
    compiled, plain = (run_trainers(_losses, tmp_path, "full", each) for each in (True, False))
    assert compiled == [pytest.approx(each, rel=1e-5) for each in plain]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid", "fsdp2"])
def test_fabric_trains_a_compiled_module_in_other_shards(name: str, tmp_path: Any) -> None:
    compiled, plain = (run_trainers(_losses, tmp_path, name, each) for each in (True, False))
    assert compiled == [pytest.approx(each, rel=1e-5) for each in plain]


@pytest.mark.slow
def test_the_trainer_trains_a_compiled_module_under_fsdp(tmp_path: Any) -> None:
    compiled, plain = (run_trainers(_trained, tmp_path, each) for each in (True, False))
    assert compiled == [pytest.approx(each, rel=1e-5) for each in plain]
