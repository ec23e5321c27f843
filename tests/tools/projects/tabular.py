"""A net on a table by LightningCLI, with binary metrics in training and validation."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    BinaryCalibrationError,
    BinaryConfusionMatrix,
    BinaryF1Score,
    BinaryPrecisionRecallCurve,
)


class Table(pl.LightningDataModule):
    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def _loader(self, shuffle: bool) -> DataLoader:
        rows = torch.randn(512, 20, generator=torch.Generator().manual_seed(1))
        table = TensorDataset(rows, (rows[:, 0] > 0).long())
        return DataLoader(table, self.batch_size, shuffle=shuffle, drop_last=True)

    def train_dataloader(self) -> DataLoader:
        return self._loader(shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(shuffle=False)


class Net(pl.LightningModule):
    def __init__(self, width: int = 64, lr: float = 1e-3) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.lr = lr
        self.train_metrics = MetricCollection([BinaryAccuracy(), BinaryF1Score()], prefix="train_")
        self.val_metrics = MetricCollection(
            [BinaryAccuracy(), BinaryAUROC(), BinaryAveragePrecision(), BinaryCalibrationError()],
            prefix="val_",
        )
        self.matrix = BinaryConfusionMatrix()
        self.curve = BinaryPrecisionRecallCurve()

    def _loss(self, batch, metrics):
        rows, labels = batch
        logits = self.net(rows)[:, 0]
        self.log_dict(metrics(logits.sigmoid(), labels))
        return nn.functional.binary_cross_entropy_with_logits(logits, labels.float()), logits

    def training_step(self, batch):
        return self._loss(batch, self.train_metrics)[0]

    def validation_step(self, batch):
        loss, logits = self._loss(batch, self.val_metrics)
        self.matrix.update(logits, batch[1])
        self.curve.update(logits, batch[1])
        self.log("val_loss", loss)

    def on_validation_epoch_end(self):
        true_negatives = self.matrix.compute()[0, 0]
        precision, _, _ = self.curve.compute()
        self.log("true_negatives", true_negatives.float())
        self.log("best_precision", precision.max())
        self.matrix.reset()
        self.curve.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    LightningCLI(Net, Table, trainer_defaults={"max_epochs": 1, "accelerator": "hpu", "devices": 1})
