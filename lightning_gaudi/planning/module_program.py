"""The program that has a Trainer fit a module on a batch; see `planning.plan_module`."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from lightning_gaudi._core import mirror


class Fitted(pl.LightningModule):
    """A module of torch, trained by AdamW: its loss, or the mean of what it returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        output = self.module(**batch) if isinstance(batch, dict) else self.module(*batch)
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        tensors = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        return torch.stack([each.float().mean() for each in tensors]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, as torch has it."""
        return torch.optim.AdamW(self.parameters())


def main(path: Path) -> None:
    """Fit what is in a file that `plan_module` has written."""
    make, batch = pickle.loads(path.read_bytes())
    module = make if isinstance(make, nn.Module) else make()
    family = mirror.family_of(module)
    if family is None:
        module, family = Fitted(module), mirror.LIGHTNING
    trainer = importlib.import_module(family.trainer).Trainer()
    trainer.fit(module, DataLoader([batch] * 4, batch_size=None))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
