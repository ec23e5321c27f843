"""A variational autoencoder with torch.distributions, on two cards, as the script says."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.regression import KLDivergence


class Autoencoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 64))
        self.decoder = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))
        self.divergence = KLDivergence()

    def forward(self, pictures):
        mean, spread = self.encoder(pictures).chunk(2, dim=1)
        return Independent(Normal(mean, nn.functional.softplus(spread) + 1e-4), 1)

    def training_step(self, batch, batch_idx):
        (pictures,) = batch
        latent = self(pictures)
        prior = Independent(Normal(torch.zeros_like(latent.mean), torch.ones_like(latent.mean)), 1)
        found = self.decoder(latent.rsample())
        error = nn.functional.mse_loss(found, pictures, reduction="none").sum(1)
        loss = (error + kl_divergence(latent, prior)).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        found = self.decoder(self(batch[0]).mean)
        self.divergence.update(found.softmax(1), batch[0].softmax(1))
        self.log("divergence", self.divergence)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    data = TensorDataset(torch.rand(1024, 784, generator=torch.Generator().manual_seed(0)))
    trainer = pl.Trainer(accelerator="hpu", devices=2, strategy="ddp", max_epochs=1)
    trainer.fit(Autoencoder(), DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
