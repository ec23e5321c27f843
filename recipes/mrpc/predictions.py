"""Writes predictions in the form in which GLUE takes them."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from recipes.common.folders import place_of, prediction_path, write_predictions


class SubmissionWriter(Callback):
    """Writes what `predict` found: `index` and `prediction`, separated by a tab, in order.

    Args:
        path: the file; GLUE wants it to be called MRPC.tsv, as it is by default, in the folder of
            the run that the checkpoint is from.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else place_of(path)
        self._found: list[Tensor] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the results of an earlier run."""
        self._found = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the results on the device: [2, B]."""
        self._found.append(torch.stack([outputs["index"], outputs["prediction"]]))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads the results, once for all batches, and writes those of all ranks."""
        columns = torch.cat(self._found, dim=1).cpu() if self._found else torch.empty(2, 0)
        self._found = []
        rows = [(i, f"{i}\t{label}") for i, label in columns.T.tolist() if i >= 0]
        path = self.path or prediction_path(trainer, "MRPC.tsv")
        write_predictions(trainer, path, rows, header="index\tprediction")
