"""Launches of a recipe's training step by default, beside those of eager mode without a compiler.

A simulated HPU runs a graph operation by operation, and counts it as one launch. These are counts,
the same on every machine and in every run.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

import recipes.bert_pretraining.__main__ as bert_pretraining
import recipes.mrpc.__main__ as mrpc
import recipes.t5_summarization.__main__ as t5_summarization
from benchmarks.harness.interleaved import Effort
from benchmarks.harness.rows import Row
from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor, GraphReport
from lightning_gaudi.compilation.settings import VARIABLE

RECIPES = {"BERT pretraining": bert_pretraining, "MRPC": mrpc, "T5 summarization": t5_summarization}
NUM_STEPS, FIRST_VALIDATION = 96, 64
"""The first validation comes when all that trains is compiled."""
SIDES = {
    "eager, uncompiled": ("none", "adamw"),
    "eager, vendor's AdamW": ("none", "auto"),
    "default": ("", "auto"),
}


class Graphs(Callback):
    """How many graphs had been compiled when each step began."""

    def __init__(self) -> None:
        self.at_start: list[int] = []

    def on_train_batch_start(self, *args: Any) -> None:
        """Read it; a simulated device counts on the host."""
        metric = vendor.metric("graph_compilation")
        assert metric is not None
        self.at_start.append(int(metric["TotalNumber"]))


def fit(recipe: Any, compile: str, optimizer: str) -> tuple[GraphReport, int]:
    """Runs some steps of a recipe's `simulated.yaml`: counts, and graphs after a validation."""
    torch.compiler.reset()
    os.environ[VARIABLE] = compile
    config = Path(recipe.__file__).with_name("simulated.yaml")
    with TemporaryDirectory() as folder:
        cli = recipe.run(
            [
                *("--config", str(config), "--trainer.logger=false", "--trainer.callbacks=null"),
                *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
                *(f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={NUM_STEPS}"),
                *(f"--trainer.val_check_interval={FIRST_VALIDATION}", "--model.warmup_steps=0"),
                *("--trainer.limit_val_batches=2", f"--trainer.log_every_n_steps={NUM_STEPS}"),
                f"--model.optimizer={optimizer}",
            ],
            run=False,
        )
        monitor, graphs = GraphMonitor(), Graphs()
        cli.trainer.callbacks += [monitor, graphs]
        cli.trainer.fit(cli.model, cli.datamodule)
    return monitor.report, graphs.at_start[-1] - graphs.at_start[FIRST_VALIDATION]


def measure(effort: Effort) -> list[Row]:
    """Count for each recipe; an effort makes no difference to counts."""
    return [row for title, recipe in RECIPES.items() for row in _count(title, recipe)]


def _count(title: str, recipe: Any) -> list[Row]:
    found = {side: fit(recipe, *settings) for side, settings in SIDES.items()}
    launches = {side: report.launches_per_step or 0.0 for side, (report, _) in found.items()}
    report, num_late = found["default"]
    assert report.graph_compilations is not None
    num_graphs = sum(report.graph_compilations.values())
    others = ", ".join(f"{launches[side]:g} {side}" for side in SIDES if side != "default")
    unit = "launches a step"
    syncs = report.host_syncs_per_step or 0.0
    return [
        Row(title, launches["default"], unit, limit=num_graphs * 2 + 10, detail=others),
        Row(f"{title}: compiled after the first validation", num_late, "graphs", limit=0),
        Row(f"{title}: host syncs", syncs, "a step", limit=0, detail=f"of {num_graphs} graphs"),
    ]
