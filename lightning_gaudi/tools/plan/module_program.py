"""Fits a module on a batch with a Trainer, as a program; see `plan.plan_module`."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from lightning_gaudi._core import mirror


def _trained_by_adamw(module: nn.Module) -> Any:
    """Makes a LightningModule that trains a torch module on its loss or on its outputs' mean."""

    class Trained(_lightning(mirror.LIGHTNING).LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            output = module(**batch) if isinstance(batch, dict) else module(*batch)
            loss = getattr(output, "loss", None)
            if isinstance(loss, Tensor):
                return loss
            tensors = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
            return torch.stack([each.float().mean() for each in tensors]).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Trained()


def _lightning(family: mirror.Family) -> Any:
    return importlib.import_module(family.trainer)


def main(path: Path) -> None:
    """Fits the module in a file that `plan_module` has written."""
    make, batch = pickle.loads(path.read_bytes())
    module = make if isinstance(make, nn.Module) else make()
    family = mirror.family_of(module)
    if family is None:
        module, family = _trained_by_adamw(module), mirror.LIGHTNING
    trainer = _lightning(family).Trainer()
    trainer.fit(module, DataLoader([batch] * 4, batch_size=None))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
