"""Two optimizers by hand, with penalties on gradients."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.aggregation import RunningMean
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure


class Adversarial(pl.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.painter = nn.Sequential(
            nn.Linear(16, 64 * 49), nn.Unflatten(1, (64, 7, 7)), nn.ConvTranspose2d(64, 32, 4, 2, 1)
        )
        self.painter.extend([nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid()])
        self.judge = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.Flatten()
        )
        self.judge.append(nn.Linear(64 * 49, 1))
        self.running = RunningMean(window=5)
        self.noise = PeakSignalNoiseRatio(data_range=1.0)
        self.likeness = StructuralSimilarityIndexMeasure(data_range=1.0, kernel_size=7)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        for_painter, for_judge = self.optimizers()
        fake = self.painter(torch.randn(len(real), 16, device=self.device))
        self.toggle_optimizer(for_judge)
        mixed = torch.lerp(real, fake.detach(), torch.rand(len(real), 1, 1, 1, device=self.device))
        mixed.requires_grad_()
        (slope,) = torch.autograd.grad(self.judge(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = self.judge(fake.detach()).mean() - self.judge(real).mean() + 10 * penalty
        for_judge.zero_grad()
        self.manual_backward(loss)
        for_judge.step()
        self.untoggle_optimizer(for_judge)
        if batch_idx % 2 == 0:
            self.toggle_optimizer(for_painter)
            painted = -self.judge(fake).mean()
            for_painter.zero_grad()
            self.manual_backward(painted)
            for_painter.step()
            self.untoggle_optimizer(for_painter)
        self.running.update(loss.detach())

    def validation_step(self, batch, batch_idx):
        (real,) = batch
        fake = self.painter(torch.randn(len(real), 16, device=self.device))
        self.noise(fake, real)
        self.likeness(fake, real)
        self.log_dict({"noise": self.noise, "likeness": self.likeness})

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.painter.parameters(), 1e-4, (0.0, 0.9)),
            torch.optim.Adam(self.judge.parameters(), 1e-4, (0.0, 0.9)),
        )


if __name__ == "__main__":
    pictures = TensorDataset(torch.rand(128, 1, 28, 28))
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1)
    trainer.fit(Adversarial(), DataLoader(pictures, 16, drop_last=True), DataLoader(pictures, 16))
