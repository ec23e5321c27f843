"""Several cards: compiled losses are those of the model as written."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi.compilation.method import is_compiled
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, batches, hpu_trainer
from tests.helpers.trainers import run_trainers

SHARDED = ("fsdp", "fsdp2", "tensor_parallel", "zero_1", "zero_2")
DECLARING = ("ddp_declared", *SHARDED)
"""Where the model names itself as a region: one in DDP, and none where its parts are sharded."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(pl.LightningModule):
    """Two blocks and a head, which `configure_model` may shard or split."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.losses: list[Tensor] = []
        self.num_graphs: list[int] = []
        self.num_compiled = 0
        if kind in DECLARING:
            self.compile_regions = ["Model"]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def configure_model(self) -> None:
        if self.kind == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            for part in (*self.blocks, self.head, self):
                fully_shard(part, mesh=mesh)
        elif self.kind == "tensor_parallel":
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            for block in self.blocks:
                parallelize_module(block, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.num_graphs.append(vendor.metric("graph_compilation")["TotalNumber"])
        self.num_compiled = sum(map(is_compiled, self.modules()))
        loss = self(batch[0]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _strategy(kind: str, compile: str) -> Any:
    from lightning_gaudi import strategies

    if kind.startswith("ddp"):
        return strategies.HPUDDPStrategy(compile=compile)
    if kind == "fsdp":
        return strategies.HPUFSDPStrategy(auto_wrap_policy={Block}, compile=compile)
    if kind.startswith("zero"):
        return strategies.HPUDeepSpeedStrategy(stage=int(kind[-1]), compile=compile)
    sizes = (2, 1) if kind == "fsdp2" else (1, 2)
    return strategies.HPUModelParallelStrategy(*sizes, compile=compile)


def _train(rank: int, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for compile in ("none", "regions"):
        model = Model(kind)
        trainer = pl.Trainer(
            accelerator="hpu",
            devices=2,
            strategy=_strategy(kind, compile),
            max_epochs=2,
            **QUIET,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(model, batches(4))
        found[compile] = torch.stack(model.losses).cpu(), model.num_graphs, model.num_compiled
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "ddp",
        "ddp_declared",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SHARDED),
    ],
)
def test_two_ranks_lose_what_they_lose_uncompiled(kind: str, tmp_path: Path) -> None:
    for found in run_trainers(_train, tmp_path, kind):
        losses, graphs, num_compiled = found["regions"]
        torch.testing.assert_close(losses, found["none"][0], rtol=1e-5, atol=1e-7)
        assert num_compiled == (4 if kind == "ddp_declared" else 3)
        assert found["none"][2] == 0
        assert graphs[1] > graphs[0]
        # None after the first epoch, the first half of the steps.
        assert graphs[-1] == graphs[len(graphs) // 2]


class Spawned(Model):
    """Keeps on the host what it lost in the process where it has trained."""

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            assert self.num_compiled == (3 if self.kind.endswith("regions") else 0)
            torch.save(torch.stack(self.losses).cpu(), self.kind)


def spawn(folder: str, choice: str) -> None:
    """Train in ranks that Lightning spawns; in a process that holds no card."""
    os.environ["LIGHTNING_GAUDI_COMPILE"] = choice
    trainer = pl.Trainer(accelerator="hpu", devices=2, strategy="ddp_spawn", max_epochs=1, **QUIET)
    trainer.fit(Spawned(str(Path(folder) / choice)), batches(4))


@pytest.mark.slow
def test_spawned_ranks_lose_what_they_lose_uncompiled(tmp_path: Path) -> None:
    for choice in ("none", "regions"):
        source = "import sys; from tests.compilation.test_ranks import spawn; spawn(*sys.argv[1:])"
        env = {"LIGHTNING_GAUDI_SIMULATE": "2"}
        fork_python(source, str(tmp_path), choice, env=env, timeout=240)
    losses, expected = (torch.load(tmp_path / choice) for choice in ("regions", "none"))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-7)


def _train_by_fabric(rank: int) -> dict[str, Any]:
    from lightning_gaudi.fabric.strategies import HPUDDPStrategy

    found: dict[str, Any] = {}
    for compile in ("none", "regions"):
        fabric = Fabric(accelerator="hpu", devices=2, strategy=HPUDDPStrategy(compile=compile))
        fabric.launch()
        torch.manual_seed(0)
        module = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
        losses = []
        for (x,) in fabric.setup_dataloaders(batches(4)):
            loss = model(x).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        found[compile] = torch.stack(losses).cpu(), sum(map(is_compiled, module.modules()))
    return found


@pytest.mark.slow
def test_two_ranks_of_fabric_lose_what_they_lose_uncompiled(tmp_path: Path) -> None:
    for found in run_trainers(_train_by_fabric, tmp_path):
        torch.testing.assert_close(found["regions"][0], found["none"][0], rtol=1e-5, atol=1e-7)
        assert found["none"][1] == 0
        assert found["regions"][1] == 2


def test_zero_3_refuses_what_it_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from lightning_gaudi.strategies import HPUDeepSpeedStrategy

    with pytest.raises(MisconfigurationException, match=r"compile= asks for 'regions'.*stage 3"):
        hpu_trainer(strategy=HPUDeepSpeedStrategy(stage=3, compile="regions"))
    monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
    hpu_trainer(strategy=HPUDeepSpeedStrategy(stage=3))
