"""A residual MLP on tabular data, compiled: `trainer.fit(torch.compile(model))`."""

import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(num_samples: int, seed: int, num_classes: int = 6) -> TensorDataset:
    """Gaussian blobs in sixteen dimensions, two for each class."""
    centers = 1.2 * torch.randn(2 * num_classes, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    blob = torch.randint(2 * num_classes, (num_samples,), generator=generator)
    points = centers[blob] + torch.randn(num_samples, 16, generator=generator)
    return TensorDataset(points, blob % num_classes)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.net(x)


class Classifier(L.LightningModule):
    def __init__(self, width: int = 32, depth: int = 2, num_classes: int = 6) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, width),
            *(Block(width) for _ in range(depth)),
            nn.Linear(width, num_classes),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        accuracy = (self(x).argmax(dim=1) == y).float().mean()
        self.log("val_accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


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
    train = DataLoader(blobs(4096, seed=1), batch_size, shuffle=True, drop_last=True)
    val = DataLoader(blobs(1024, seed=2), batch_size, drop_last=True)
    model = Classifier()
    trainer.fit(torch.compile(model), train, val)
    if trainer.is_global_zero:
        print(f"metric: val_accuracy {trainer.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
