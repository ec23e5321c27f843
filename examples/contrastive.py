"""SimCLR on curves: the negatives of all devices, by `all_gather` with gradients."""

import argparse

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 10


class Curves(Dataset):
    """Noisy sums of sines; a class fixes the frequencies, each curve has its own phases."""

    def __init__(self, num_curves: int, seed: int, length: int = 32) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(num_curves) % NUM_CLASSES
        pairs = torch.combinations(torch.arange(1, 6))
        frequencies = pairs[self.labels]
        phases = 2 * torch.pi * torch.rand(num_curves, 2, generator=generator)
        time = torch.linspace(0, 2 * torch.pi, length)
        self.clean = (frequencies[..., None] * time + phases[..., None]).sin().sum(1)
        self.seed = seed

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        # An augmentation of the sample, the same whichever process draws it.
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        views = []
        for _ in range(2):
            shift = int(torch.randint(32, (), generator=generator))
            noise = 0.8 * torch.randn(32, generator=generator)
            views.append(self.clean[index].roll(shift) + noise)
        return *views, self.labels[index]


class SimCLR(L.LightningModule):
    def __init__(self, temperature: float = 0.2, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32)
        )
        self.projector = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def training_step(self, batch, batch_idx):
        first, second, _ = batch
        queries = F.normalize(self.projector(self.encoder(first)), dim=1)
        keys = F.normalize(self.projector(self.encoder(second)), dim=1)
        all_keys = self.all_gather(keys, sync_grads=True).view(-1, keys.shape[1])
        logits = queries @ all_keys.T / self.hparams.temperature
        targets = torch.arange(len(queries), device=self.device) + self.global_rank * len(queries)
        loss = F.cross_entropy(logits, targets)
        self.log("train_loss", loss)
        return loss

    def on_validation_epoch_start(self):
        self.features, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        view, _, label = batch
        self.features.append(F.normalize(self.encoder(view), dim=1))
        self.labels.append(label)

    def on_validation_epoch_end(self):
        features = self.all_gather(torch.cat(self.features)).flatten(0, -2)
        labels = self.all_gather(torch.cat(self.labels)).flatten()
        similarity = features @ features.T
        similarity.fill_diagonal_(-1)
        neighbours = labels[similarity.topk(5, dim=1).indices]
        votes = F.one_hot(neighbours, NUM_CLASSES).sum(dim=1)
        self.log("knn_accuracy", (votes.argmax(dim=1) == labels).float().mean())

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
    batch_size = args.batch_size // trainer.world_size
    train = DataLoader(Curves(2880, seed=1), batch_size, shuffle=True)
    trainer.fit(SimCLR(), train, DataLoader(Curves(960, seed=2), batch_size))
    if trainer.is_global_zero:
        print(f"metric: knn_accuracy {trainer.callback_metrics['knn_accuracy']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=96, help="over all devices")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
