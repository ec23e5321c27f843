"""Weights that are unfrozen while ranks train: averaged as the others, or refused by name."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from lightning_gaudi.fabric.strategies import HPUDDPStrategy as FabricStrategy
from lightning_gaudi.strategies import (
    HPUDDPStrategy,
    HPUDeepSpeedStrategy,
    HPUFSDPStrategy,
    HPUModelParallelStrategy,
)
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import Batch, loader

NUM_RANKS = 2
STRATEGIES: dict[str, Any] = {
    "ddp": HPUDDPStrategy,
    "fsdp": HPUFSDPStrategy,
    "fsdp2": lambda: HPUModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    "stage 1": lambda: HPUDeepSpeedStrategy(stage=1),
    "stage 3": lambda: HPUDeepSpeedStrategy(stage=3),
}


class Model(pl.LightningModule):
    """A frozen backbone and a head; `unfreeze` says where the backbone is unfrozen."""

    def __init__(self, unfreeze: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())
        self.head = nn.Linear(8, 1)
        self.unfreeze = unfreeze
        if unfreeze not in ("callback", "frozen"):
            self.backbone.requires_grad_(False)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx == 2 and self.unfreeze in ("hook", "accumulating"):
            self.backbone.requires_grad_(True)
        if self.unfreeze == "frozen" and self.trainer.global_step in (3, 8):
            self.head.requires_grad_(self.trainer.global_step == 8)
        if batch_idx == 2 and self.unfreeze == "added":
            self.extra = nn.Linear(1, 1).to(self.device)
            self.optimizers().add_param_group({"params": [*self.extra.parameters()]})

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if batch_idx == 2 and self.unfreeze == "step":
            self.backbone.requires_grad_(True)
        result = self.head(self.backbone(batch[0]))
        if hasattr(self, "extra"):
            result = self.extra(result)
        return (result - batch[1]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        weights = self.parameters()
        if self.unfreeze == "callback":
            weights = filter(lambda each: each.requires_grad, weights)
        return torch.optim.SGD(weights, lr=0.05)


class Sharded(Model):
    """By FSDP2, layer by layer; `weights` are the whole ones at the end."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for module in (*self.backbone, self.head, self):
            fully_shard(module, mesh=mesh)

    def on_train_end(self) -> None:
        for module in (*self.backbone, self.head, self):
            module.reshard()
        self.weights = {n: each.full_tensor().cpu() for n, each in self.named_parameters()}


class Wrapped(Model):
    """By FSDP, as one unit."""

    def on_train_end(self) -> None:
        with FullyShardedDataParallel.summon_full_params(self.trainer.strategy.model):
            named = [*self.named_parameters()]
            self.weights = {n.replace("_fsdp_wrapped_module.", ""): w.cpu() for n, w in named}


MODELS = {"fsdp": Wrapped, "fsdp2": Sharded}


def _fit(
    rank: int, unfreeze: str, num_ranks: int, strategy: str = "ddp"
) -> dict[str, Tensor] | str:
    model = MODELS.get(strategy, Model)(unfreeze)
    callbacks: list[Any] = []
    if unfreeze == "callback":
        callbacks = [BackboneFinetuning(1)]
    if num_ranks > 1:
        place = {"strategy": STRATEGIES[strategy](), "devices": num_ranks}
    else:
        place = {"accelerator": "cpu", "devices": 1}
    trainer = pl.Trainer(
        **{"accelerator": "hpu", **QUIET, **place},
        max_epochs=2,
        callbacks=callbacks,
        use_distributed_sampler=False,
        accumulate_grad_batches=2 if unfreeze == "accumulating" else 1,
    )
    try:
        trainer.fit(model, loader(rank, num_ranks, 6))
    except RuntimeError as error:
        return str(error)
    if strategy in MODELS:
        return model.weights
    return {name: each.cpu() for name, each in model.state_dict().items()}


@pytest.mark.slow_but("accumulating")
@pytest.mark.parametrize("unfreeze", ["hook", "accumulating", "callback"])
def test_what_is_unfrozen_trains_on_two_ranks_as_on_one(unfreeze: str, tmp_path: Any) -> None:
    expected = _fit(0, unfreeze, 1)
    first, second = run_trainers(_fit, tmp_path, unfreeze, NUM_RANKS)
    assert isinstance(expected, dict)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(first["backbone.0.weight"], Model(unfreeze).backbone[0].weight)


@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in STRATEGIES if name != "ddp")],
)
def test_what_is_frozen_for_a_while_trains_as_on_one_rank(strategy: str, tmp_path: Any) -> None:
    expected = _fit(0, "frozen", 1)
    for found in run_trainers(_fit, tmp_path, "frozen", NUM_RANKS, strategy):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("unfreeze", "name"), [("step", "backbone.0.weight"), ("added", "extra")])
def test_what_no_rank_averages_is_refused_by_name(unfreeze: str, name: str, tmp_path: Any) -> None:
    for found in run_trainers(_fit, tmp_path, unfreeze, NUM_RANKS):
        assert isinstance(found, str)
        assert name in found
        assert "not averaged over the ranks" in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "unfreeze"),
    [
        ("fsdp2", "hook"),
        pytest.param("fsdp", "hook", marks=pytest.mark.slow),
        pytest.param("fsdp", "callback", marks=pytest.mark.slow),
    ],
)
def test_shards_train_that_are_unfrozen(strategy: str, unfreeze: str, tmp_path: Any) -> None:
    first, second = run_trainers(_fit, tmp_path, unfreeze, NUM_RANKS, strategy)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, _fit(0, unfreeze, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage 1", pytest.param("stage 3", marks=pytest.mark.slow)])
def test_zero_refuses_what_is_unfrozen(stage: str, tmp_path: Any) -> None:
    for found in run_trainers(_fit, tmp_path, "hook", NUM_RANKS, stage):
        assert "backbone.0.weight, backbone.0.bias, backbone.1.weight and 1 more were" in found


def _train_with_fabric(rank: int) -> dict[str, Tensor]:
    fabric = Fabric(accelerator="hpu", devices=NUM_RANKS, strategy=FabricStrategy())
    fabric.launch()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.05))
    for index, batch in enumerate(loader(rank, NUM_RANKS, 6)):
        if index == 2:
            net[0].requires_grad_(True)
        loss = (model(batch[0].to("hpu")) - batch[1].to("hpu")).pow(2).mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    return {name: each.cpu() for name, each in net.state_dict().items()}


@pytest.mark.slow
def test_fabric_averages_what_is_unfrozen(tmp_path: Any) -> None:
    first, second = run_trainers(_train_with_fabric, tmp_path)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def _play(rank: int, num_ranks: int) -> dict[str, Tensor]:
    """Two networks against each other, one of them frozen while it judges the other."""
    fabric = Fabric(accelerator="hpu", devices=num_ranks, strategy=FabricStrategy())
    fabric.launch()
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, size)) for size in (8, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    maker, judge = (fabric.setup(*pair) for pair in zip(nets, optimizers, strict=True))
    for index, batch in enumerate(loader(rank, num_ranks, 6)):
        x = batch[0].to("hpu")
        is_makers_turn = index % 2 == 0
        judge[0].requires_grad_(not is_makers_turn)
        (model, optimizer), sign = (maker, 1) if is_makers_turn else (judge, -1)
        optimizer.zero_grad()
        made = maker[0](x) if is_makers_turn else maker[0](x).detach()
        fabric.backward((judge[0](made) * sign).mean() + model(x).square().mean())
        optimizer.step()
    return {f"{i}.{n}": w.cpu() for i, net in enumerate(nets) for n, w in net.state_dict().items()}


@pytest.mark.slow
def test_a_network_that_is_frozen_in_turns_trains_as_on_one_rank(tmp_path: Any) -> None:
    (expected,) = run_trainers(_play, tmp_path, 1, num_ranks=1)
    for found in run_trainers(_play, tmp_path, NUM_RANKS):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
