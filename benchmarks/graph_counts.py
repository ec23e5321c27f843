"""Measures what GraphMonitor adds to a training step before and after many graphs were compiled.

It runs in lazy mode, where every shape makes a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from benchmarks.harness.interleaved import Comparison, Effort
from benchmarks.harness.rows import Row
from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor

NUM_RECIPES = 3000
BATCH_SIZE = 8


def compile_many(count: int) -> None:
    """Compiles `count` graphs, each for another shape."""
    for length in range(1, count + 1):
        torch.zeros(length, device="hpu")
        vendor.mark_step()


def monitored_step(side: str) -> Callable[[], object]:
    """Returns a training step of a tiny MLP, with GraphMonitor if `side` says so."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("hpu")
    inputs = torch.randn(BATCH_SIZE, 16).to("hpu")
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=1e-4)
    monitor = GraphMonitor()
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("hpu")),
        global_step=0,
        log_every_n_steps=50,
        loggers=[],
    )
    monitor.on_fit_start(trainer, mlp)  # type: ignore[arg-type]

    def step() -> None:
        if side == "monitored":
            monitor.on_train_batch_start(trainer, mlp, None, 0)  # type: ignore[arg-type]
        mlp(inputs).square().mean().backward()
        vendor.mark_step()
        optimizer.step()
        optimizer.zero_grad()
        vendor.mark_step()

    return step


def measure(effort: Effort) -> list[Row]:
    """Compares steps with the callback and without, before and after many graphs."""
    torch.set_num_threads(1)
    rows = []
    for count in (0, NUM_RECIPES):
        compile_many(count)
        name = f"step with GraphMonitor, {count} graphs before"
        comparison = Comparison(name, monitored_step, limit=1.25, calls=50, rounds=31)
        rows.append(comparison.measure("monitored", "alone", effort))
    return rows
