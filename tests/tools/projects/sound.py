"""Sound made clean again in the space of frequencies, with metrics of audio."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.audio import ScaleInvariantSignalNoiseRatio, SignalNoiseRatio
from torchmetrics.nominal import CramersV


class Denoiser(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 32, 9, padding=4), nn.GELU(), nn.Conv1d(32, 32, 9, padding=8, dilation=2)
        )
        self.body.extend([nn.BatchNorm1d(32), nn.GELU(), nn.Conv1d(32, 1, 9, padding=4)])
        self.ratio, self.scaled = SignalNoiseRatio(), ScaleInvariantSignalNoiseRatio()
        self.bond = CramersV(num_classes=4)

    def training_step(self, batch, batch_idx):
        noisy, clean, _ = batch
        return nn.functional.l1_loss(self.body(noisy), clean)

    def validation_step(self, batch, batch_idx):
        noisy, clean, kind = batch
        found = self.body(noisy)
        self.ratio(found, clean)
        self.scaled(found, clean)
        loudness = found.abs().mean((1, 2))
        edges = torch.linspace(0, 1, 3, device=self.device)
        self.bond.update(torch.bucketize(loudness, edges), kind)
        self.log_dict({"ratio": self.ratio, "scaled": self.scaled, "bond": self.bond})

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters())


if __name__ == "__main__":
    clean = torch.randn(64, 1, 2000, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(clean + 0.1 * torch.randn(64, 1, 2000), clean, torch.arange(64) % 4)
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1, strategy="auto")
    trainer.fit(Denoiser(), DataLoader(data, 8, shuffle=True), DataLoader(data, 8))
