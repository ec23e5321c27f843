"""FSDP2 asks HCCL for sums alone, and trains as one process on a CPU does."""

from __future__ import annotations

import copy
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import Layout, parallelize
from tests.strategies.sharded_cases import Case, global_losses, loader, make_net

NUM_RANKS = 2
REDUCING = ("all_reduce", "reduce_scatter_tensor", "reduce_scatter_single")
"""Collectives by which FSDP2 reduces, in one version of torch or another."""
FACTOR = 4.0


def _divided(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """With gradients that are divided by more than there are ranks: PREMUL_SUM elsewhere."""
    net = parallelize(net, mesh)
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(FACTOR)
    return net


def _fit_with_fabric(rank: int, how: Any) -> list[float]:
    fabric = Fabric(
        accelerator="hpu",
        devices=NUM_RANKS,
        strategy=ModelParallelStrategy(how, NUM_RANKS, 1),
    )
    fabric.launch()
    model = fabric.setup_module(make_net())
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.05))
    losses = []
    for features, targets in loader(rank, NUM_RANKS):
        loss = nn.functional.mse_loss(model(features.to("hpu")), targets.to("hpu"))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _work(rank: int) -> dict[str, Any]:
    asked: list[str] = []

    def noting(collective: Any, *args: Any, **kwargs: Any) -> Any:
        called = inspect.signature(collective).bind(*args, **kwargs)
        called.apply_defaults()
        if called.args[0].device.type == "hpu":  # the Trainer's own questions are not HCCL's
            op = called.arguments["op"]
            asked.append(getattr(op, "name", repr(op)))
        return collective(*args, **kwargs)

    losses = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in REDUCING:
            if hasattr(dist, name):
                patch.setattr(dist, name, partial(noting, getattr(dist, name)))
        for name, how in (("even", parallelize), ("divided", _divided)):
            losses[name, "Trainer"] = Layout(NUM_RANKS, 1, how).fit(Case("sgd"))[0]
            losses[name, "Fabric"] = _fit_with_fabric(rank, how)
    return {"asked": asked, "losses": losses}


def _on_the_cpu(divisor: float, decays: bool) -> list[float]:
    """Losses of one process on the whole batch."""
    net = copy.deepcopy(make_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5 if decays else 1.0)
    losses = []
    for features, targets in loader(0, 1):
        loss = nn.functional.mse_loss(net(features), targets)
        (loss * NUM_RANKS / divisor).backward()  # FSDP2 divides the sum of the ranks' means
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_fsdp2_sums_and_divides_and_trains_as_a_cpu_does(tmp_path: Path) -> None:
    ranks = run_trainers(_work, tmp_path, num_ranks=NUM_RANKS)
    for found in ranks:
        assert len(found["asked"]) > 100
        assert set(found["asked"]) == {"SUM"}
    for name, divisor in (("even", NUM_RANKS), ("divided", FACTOR)):
        for kind in ("Trainer", "Fabric"):
            losses = global_losses([found["losses"][name, kind] for found in ranks])
            expected = torch.tensor(_on_the_cpu(divisor, kind == "Trainer"), dtype=torch.float64)
            torch.testing.assert_close(losses, expected, rtol=0, atol=1e-6, msg=f"{name} {kind}")
