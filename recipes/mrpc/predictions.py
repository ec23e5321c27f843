"""Predictions in the form in which GLUE takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class SubmissionWriter(Callback):
    """Write what `predict` found: `index` and `prediction`, separated by a tab, in order.

    Args:
        path: the file; GLUE wants it to be called MRPC.tsv.
    """

    def __init__(self, path: str = "runs/mrpc/MRPC.tsv") -> None:
        self.path = Path(path).expanduser()
        self._found: list[Tensor] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier run."""
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
        """Keep the results on the device: [2, B]."""
        self._found.append(torch.stack([outputs["index"], outputs["prediction"]]))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the results of all ranks together; the first one writes them."""
        gathered: Any = pl_module.all_gather(torch.stack(self._found))  # [S, 2, B], [R, S, 2, B]
        self._found = []
        if not trainer.is_global_zero:
            return
        columns = gathered.cpu().movedim(-2, 0).flatten(1)
        rows = sorted((i, label) for i, label in columns.T.tolist() if i >= 0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["index\tprediction", *(f"{i}\t{label}" for i, label in rows)]
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{len(rows)} predictions written to {self.path}", flush=True)
