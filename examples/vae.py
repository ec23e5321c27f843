"""A variational autoencoder on drawn strokes: the latents are sampled on the device."""

import argparse

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split


class Strokes(Dataset):
    """Images of one straight stroke each, drawn from a position and an angle."""

    def __init__(self, num_images: int, size: int = 16, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        centers = size * (0.3 + 0.4 * torch.rand(num_images, 2, generator=generator))
        angles = torch.pi * torch.rand(num_images, 1, 1, generator=generator)
        grid = torch.arange(size, dtype=torch.float32)
        dy = grid[None, :, None] - centers[:, 0, None, None]
        dx = grid[None, None, :] - centers[:, 1, None, None]
        across = dx * angles.sin() - dy * angles.cos()
        along = dx * angles.cos() + dy * angles.sin()
        ink = torch.exp(-(across**2) / 2) * (along.abs() < size / 3)
        self.images = ink.unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


class VAE(L.LightningModule):
    def __init__(self, latent_dim: int = 8, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 2 * latent_dim),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, 32 * 4 * 4),
            nn.ReLU(),
            nn.Unflatten(1, (32, 4, 4)),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def negative_elbo(self, images):
        mean, log_var = self.encoder(images).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        logits = self.decoder(z)
        nll = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum((1, 2, 3))
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1)
        return (nll + kl).mean()

    def training_step(self, batch, batch_idx):
        loss = self.negative_elbo(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.negative_elbo(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main(args: argparse.Namespace) -> None:
    L.seed_everything(args.seed, workers=True)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        max_epochs=args.max_epochs,
        enable_progress_bar=False,
        logger=False,
        enable_checkpointing=False,
    )
    splits = torch.Generator().manual_seed(0)
    train_set, val_set = random_split(Strokes(5120), [4096, 1024], generator=splits)
    batch_size = args.batch_size // trainer.world_size
    train = DataLoader(train_set, batch_size, shuffle=True, drop_last=True)
    trainer.fit(VAE(), train, DataLoader(val_set, batch_size))
    if trainer.is_global_zero:
        print(f"metric: val_loss {trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
