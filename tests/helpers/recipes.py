"""The command line of a recipe without what a test does not look at, and the losses of a run."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

ROOT = Path(__file__).parents[2] / "recipes"


def quiet_cli(recipe: str, path: Path, *arguments: str, config: str = "simulated") -> Any:
    """The recipe's data, model and Trainer as a configuration has them; nothing has run.

    Args:
        recipe: folder of the recipe.
        path: where the Trainer writes.
        arguments: overrides, as on the command line.
        config: name of the YAML.
    """
    run = importlib.import_module(f"recipes.{recipe}.__main__").run
    return run(
        [
            *("--config", str(ROOT / recipe / f"{config}.yaml"), "--trainer.logger=false"),
            *("--trainer.callbacks=null", "--trainer.enable_progress_bar=false"),
            *("--trainer.enable_model_summary=false", f"--trainer.default_root_dir={path}"),
            *arguments,
        ],
        run=False,
    )


class Losses(Callback):
    """The loss of every step, from dropout that is the same on every device."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # On the CPU the initial weights came from the generator that dropout uses now.
        torch.manual_seed(1)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.values.append(outputs["loss"].detach().cpu())


class EndAt(Callback):
    """End a fit within a step: by a signal to this process, or by an error.

    Args:
        step: the optimizer step, from 1 on.
        by: name of a signal, or "error".
        rank: of the process that ends.
    """

    def __init__(self, step: int, by: str = "SIGINT", rank: int = 0) -> None:
        self.step, self.by, self.rank = step, by, rank

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step != self.step - 1 or trainer.global_rank != self.rank:
            return
        if self.by == "error":
            raise RuntimeError(f"rank {self.rank} fails")
        os.kill(os.getpid(), getattr(signal, self.by))
