"""A GRU that forecasts, with metrics of regression and aggregation, and a plateau scheduler."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import (
    ConcordanceCorrCoef,
    ExplainedVariance,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanMetric,
    MeanSquaredError,
    PearsonCorrCoef,
    R2Score,
    SpearmanCorrCoef,
)
from torchmetrics.wrappers import MinMaxMetric


class Forecast(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 48, batch_first=True)
        self.head = nn.Linear(48, 1)
        self.mean_loss = MeanMetric()
        self.best = MinMaxMetric(MeanAbsoluteError())
        kinds = (MeanSquaredError, R2Score, PearsonCorrCoef, SpearmanCorrCoef, ExplainedVariance)
        kinds += (ConcordanceCorrCoef, MeanAbsolutePercentageError)
        self.metrics = nn.ModuleList([kind() for kind in kinds])

    def forward(self, series):
        return self.head(self.rnn(series)[0][:, -1])[:, 0]

    def training_step(self, batch):
        loss = nn.functional.huber_loss(self(batch[0]), batch[1])
        self.mean_loss.update(loss)
        self.log("mean_loss", self.mean_loss, on_epoch=True)
        return loss

    def validation_step(self, batch):
        found = self(batch[0])
        for metric in self.metrics:
            metric.update(found, batch[1])
        self.best.update(found, batch[1])
        self.log("val_loss", nn.functional.mse_loss(found, batch[1]))

    def on_validation_epoch_end(self):
        for metric in self.metrics:
            self.log(type(metric).__name__, metric.compute())
            metric.reset()
        self.log_dict(self.best.compute())
        self.best.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.NAdam(self.parameters())
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


if __name__ == "__main__":
    series = torch.randn(256, 24, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(series, series[:, -1, 0] + series[:, -2, 1])
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1)
    trainer.fit(Forecast(), DataLoader(data, 32, shuffle=True), DataLoader(data, 32))
