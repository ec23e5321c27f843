"""What GraphMonitor adds to a training step after many graphs were compiled, and after none.

Run with `PT_HPU_LAZY_MODE=1 lightning-gaudi simulate --cards 1 -- python
benchmarks/graph_counts.py`. See the README.md beside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
from interleaved import Comparison, exit_code, table
from torch import nn

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor

NUM_RECIPES = 3000
BATCH_SIZE = 8


def compile_many(count: int) -> None:
    """Compile `count` graphs, each for another shape."""
    for length in range(1, count + 1):
        torch.zeros(length, device="hpu")
        vendor.mark_step()


def monitored_step(side: str) -> Callable[[], object]:
    """A training step of a tiny MLP, with GraphMonitor if `side` says so."""
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


def main() -> int:
    """Measure, print a table, and return 1 if a ratio is above its limit."""
    if not vendor.is_available() or not vendor.is_lazy():
        print(
            "This needs an hpu in lazy mode: run it through `PT_HPU_LAZY_MODE=1 lightning-gaudi "
            "simulate --cards 1 -- python ...`."
        )
        return 2
    torch.set_num_threads(1)
    results = []
    for count in (0, NUM_RECIPES):
        compile_many(count)
        name = f"step, {count} graphs before"
        comparison = Comparison(name, monitored_step, limit=1.25, calls=50, rounds=31)
        results.append(comparison.measure("monitored", "alone"))
    print(table(results, "monitored", "alone"))
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
