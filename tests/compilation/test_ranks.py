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
from torch.utils.checkpoint import checkpoint

from lightning_gaudi._core import vendor
from lightning_gaudi.compilation.method import is_compiled
from lightning_gaudi.simulator import collective_stats
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, batches, hpu_trainer
from tests.helpers.trainers import run_trainers

ZERO_3 = {"zero_3": 100_000, "zero_3_released": 0}
"""Up to how many elements a weight stays whole on each card."""
SHARDED = ("fsdp", "fsdp2", "tensor_parallel", "zero_1", "zero_2", *ZERO_3)
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
    if kind in ZERO_3:
        zero = {"stage": 3, "stage3_param_persistence_threshold": ZERO_3[kind]}
        config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
        return strategies.HPUDeepSpeedStrategy(config=config, compile=compile)
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
        assert num_compiled == (4 if kind in ("ddp_declared", "zero_1", "zero_2") else 3)
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


class ZeRO3(Model):
    """Validates and, if told, recomputes its blocks; notes what a step sends and what is here."""

    def __init__(self, kind: str, recomputes: bool, calls_parts: bool) -> None:
        super().__init__(kind)
        self.recomputes, self.calls_parts = recomputes, calls_parts
        self.sent: list[dict[str, int]] = []
        self.num_here: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        if not self.calls_parts:
            return self.head(x)
        for part in self.head:
            x = part(x)
        return x

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.sent.append({name: each["calls"] for name, each in collective_stats().items()})
        loss = super().training_step(batch, batch_idx)
        self.num_here.append(sum(weight.numel() for weight in self.blocks[0].parameters()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.losses.append(self(batch[0]).square().mean())


def _train_zero_3(rank: int, kind: str, recomputes: bool, calls_parts: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, compile in (("ddp", "none"), (kind, "none"), (kind, "regions")):
        model = ZeRO3(kind, recomputes, calls_parts)
        trainer = pl.Trainer(
            accelerator="hpu",
            devices=2,
            strategy=_strategy(name, compile),
            max_epochs=3,
            accumulate_grad_batches=2,
            **QUIET,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(model, batches(8), batches(2))
        losses = torch.stack(model.losses).cpu()
        key = "ddp" if name == "ddp" else compile
        found[key] = losses, model.num_graphs, model.num_compiled, model.sent, model.num_here
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ZERO_3)
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("calls_parts", [False, True])
def test_zero_3_gathers_around_regions(
    kind: str, recomputes: bool, calls_parts: bool, tmp_path: Path
) -> None:
    for found in run_trainers(_train_zero_3, tmp_path, kind, recomputes, calls_parts):
        losses, graphs, num_compiled, sent, num_here = found["regions"]
        for other in ("none", "ddp"):
            torch.testing.assert_close(losses, found[other][0], rtol=1e-6, atol=1e-7)
        assert num_compiled == 3
        assert graphs[-1] == graphs[len(graphs) // 2]
        # What the eager one has of the weights between forward and backward.
        assert num_here == found["none"][4]
        assert (num_here[-1] == 0) == (kind == "zero_3_released")
        # The ranks compare what they have recorded in the first steps and after a validation only.
        assert sent[-1]["broadcast"] == sent[-2]["broadcast"]


def _call_part(rank: int) -> None:
    model = Model("zero_3_released")
    strategy = _strategy("zero_3_released", "regions")
    trainer = pl.Trainer(
        accelerator="hpu", devices=2, strategy=strategy, max_epochs=1, callbacks=[Call()], **QUIET
    )
    with pytest.raises(RuntimeError, match=r"A Linear is called by itself.*'regions': \['Linear'"):
        trainer.fit(model, batches(4))


class Call(pl.Callback):
    """Calls a layer in a region, from outside."""

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        module.blocks[0].up(torch.ones(1, 8, device=module.device))


def test_zero_3_says_what_to_do_where_a_part_of_a_region_is_called(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    run_trainers(_call_part, tmp_path)


def test_zero_3_compiles_no_model_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from lightning_gaudi.strategies import HPUDeepSpeedStrategy

    with pytest.raises(MisconfigurationException, match=r"compile= asks for 'model'.*'regions'"):
        hpu_trainer(strategy=HPUDeepSpeedStrategy(stage=3, compile="model"))
    monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
    for compile in (None, "regions", "none"):
        hpu_trainer(strategy=HPUDeepSpeedStrategy(stage=3, compile=compile))
