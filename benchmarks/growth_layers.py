"""What 4, 32 and 128 layers cost: compiling and planning them, saving them, and their checksums.

The layers are narrow, so that what is there for each of them shows, and not what they compute. As a
program, `python -m benchmarks.growth_layers NUM` trains so many for a few steps: that is planned.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.harness.curves import curve
from benchmarks.harness.interleaved import Effort, elapsed
from benchmarks.harness.machine import ROOT
from benchmarks.harness.rows import Row
from lightning_gaudi import HPUCheckpointIO, vendor
from lightning_gaudi.checkpoint.verify import check_file

SIZES = (4, 32, 128)
WIDTH, BATCH_SIZE, NUM_STEPS = 64, 8, 6
LINEAR, FLAT = 1.15, 0.1
_OWN = ("LIGHTNING_GAUDI_SIMULATE", "PT_HPU_LAZY_MODE")
"""What this process was started with, and a plan chooses for itself."""


class Layer(nn.Module):
    """One of many that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Layered(LightningModule):
    """So many layers, one behind the other."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))

    def training_step(self, batch: Tensor) -> Tensor:
        for layer in self.layers:
            batch = layer(batch)
        return batch.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Clock(Callback):
    """When each step began, and how many graphs there were then."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.num_graphs = 0

    def on_train_batch_start(self, *_: Any) -> None:
        self.begun.append(perf_counter())

    def on_train_end(self, *_: Any) -> None:
        metric = vendor.metric("graph_compilation")
        self.num_graphs = int(metric["TotalNumber"]) if metric else 0


def fit(num_layers: int) -> tuple[Trainer, Clock]:
    """Trains so many layers for a few steps."""
    clock = Clock()
    trainer = Trainer(
        accelerator="hpu",
        devices=1,
        max_steps=NUM_STEPS,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    samples = torch.ones(BATCH_SIZE * NUM_STEPS, WIDTH)
    trainer.fit(Layered(num_layers), DataLoader(samples, batch_size=BATCH_SIZE))
    return trainer, clock


def plan_s(num_layers: int) -> float:
    """Seconds that `lightning-gaudi plan` takes for the program."""
    command = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "plan", "--"]
    command += [sys.executable, "-m", "benchmarks.growth_layers", str(num_layers)]
    begin = perf_counter()
    with TemporaryDirectory() as folder:
        subprocess.run(
            command,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k not in _OWN} | {"TMPDIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    return perf_counter() - begin


def measure(effort: Effort) -> list[Row]:
    """Train, save and check each model; plan the program of each."""
    found: dict[str, dict[int, float]] = {}

    def note(name: str, size: int, value: float) -> None:
        found.setdefault(name, {})[size] = value

    fit(2)  # what is loaded once
    for size in SIZES:
        torch.compiler.reset()
        graphs = _num_graphs()
        trainer, clock = fit(size)
        steps = [b - a for a, b in zip(clock.begun, clock.begun[1:], strict=False)]
        note("graphs", size, clock.num_graphs - graphs)
        note("first", size, steps[0])
        note("step", size, min(steps[1:]))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "some.ckpt"
            note("save", size, _least(lambda: trainer.save_checkpoint(path), effort))  # noqa: B023
            note("bytes", size, path.stat().st_size)
            io = HPUCheckpointIO()
            note("load", size, _least(lambda: io.load_checkpoint(path), effort))  # noqa: B023
            note("check", size, _least(lambda: check_file(path), effort))  # noqa: B023
        note("plan", size, plan_s(size))
    return [
        curve("graphs that are compiled", found["graphs"], "graphs", FLAT),
        curve("first step, compiling", found["first"], limit=LINEAR),
        curve("a step", found["step"], limit=LINEAR),
        curve("saving", found["save"], limit=LINEAR),
        curve("bytes of a checkpoint", found["bytes"], "B", LINEAR),
        curve("loading it, with its checksums compared", found["load"], limit=LINEAR),
        curve("comparing its checksums alone", found["check"], limit=LINEAR),
        curve("planning", found["plan"], limit=LINEAR),
    ]


def _num_graphs() -> int:
    metric = vendor.metric("graph_compilation")
    return int(metric["TotalNumber"]) if metric else 0


def _least(do: Callable[[], object], effort: Effort) -> float:
    return min(elapsed(do) for _ in range(effort.rounds(5)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    fit(int(sys.argv[1]))
