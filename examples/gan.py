"""A GAN on two moons: manual optimization, two optimizers, two backward passes a step."""

import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def two_moons(num_samples: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(num_samples, generator=generator) * torch.pi
    is_lower = torch.rand(num_samples, generator=generator) < 0.5
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    points = torch.where(is_lower[:, None], lower, upper)
    return points + 0.05 * torch.randn(num_samples, 2, generator=generator)


def energy_distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """0 where two samples come from one distribution, and larger the more they differ."""
    return 2 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean()


def mlp(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_inputs, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, num_outputs),
    )


class GAN(L.LightningModule):
    def __init__(
        self, latent_dim: int = 8, lr_g: float = 5e-4, lr_d: float = 2e-3, seed: int = 0
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = mlp(latent_dim, 2)
        self.discriminator = mlp(2, 1)

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(real), self.hparams.latent_dim, device=self.device)
        bce = nn.functional.binary_cross_entropy_with_logits

        self.toggle_optimizer(optimizer_d)
        logits = self.discriminator(torch.cat([real, self(z).detach()]))
        labels = torch.cat([torch.full((len(real), 1), 0.9), torch.zeros(len(real), 1)])
        loss_d = bce(logits, labels.to(logits))
        optimizer_d.zero_grad()
        self.manual_backward(loss_d)
        self.clip_gradients(optimizer_d, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

        self.toggle_optimizer(optimizer_g)
        logits = self.discriminator(self(z))
        loss_g = bce(logits, torch.ones_like(logits))
        optimizer_g.zero_grad()
        self.manual_backward(loss_g)
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)
        self.log_dict({"loss_d": loss_d, "loss_g": loss_g}, prog_bar=True)

    def on_train_start(self):
        torch.manual_seed(self.hparams.seed + self.global_rank)  # each rank its own noise

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        (real,) = batch
        z = torch.randn(len(real), self.hparams.latent_dim, device=self.device)
        self.log("energy_distance", energy_distance(self(z), real), sync_dist=True)

    def configure_optimizers(self):
        networks = (self.generator, self.hparams.lr_g), (self.discriminator, self.hparams.lr_d)
        optimizers = [
            torch.optim.Adam(net.parameters(), lr, betas=(0.5, 0.99)) for net, lr in networks
        ]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(o, 0.95) for o in optimizers]


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
    batch_size = args.batch_size // trainer.world_size
    train = DataLoader(TensorDataset(two_moons(8192, seed=1)), batch_size, shuffle=True)
    val = DataLoader(TensorDataset(two_moons(2048, seed=2)), 1024 // trainer.world_size)
    trainer.fit(GAN(seed=args.seed), train, val)
    if trainer.is_global_zero:
        print(f"metric: energy_distance {trainer.callback_metrics['energy_distance']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=128, help="over all devices")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
