"""Several dataloaders: two tasks a training step, two validation sets, predictions to files."""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_FEATURES = 12


def samples(num_samples: int, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features, and the hidden quantity that both tasks are about."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, NUM_FEATURES, generator=generator) + shift
    hidden = (x[:, :6] * x[:, 6:]).sum(1) / 6**0.5
    return x, hidden


def regression(num_samples: int, seed: int) -> TensorDataset:
    x, hidden = samples(num_samples, seed)
    return TensorDataset(x, hidden)


def classification(num_samples: int, seed: int, shift: float = 0.0) -> TensorDataset:
    x, hidden = samples(num_samples, seed, shift)
    return TensorDataset(x, (hidden > 0).float())


class MultiTask(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(NUM_FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU()
        )
        self.heads = nn.ModuleDict({task: nn.Linear(96, 1) for task in ("value", "sign")})

    def forward(self, x, task: str):
        return self.heads[task](self.trunk(x)).squeeze(1)

    def training_step(self, batch, batch_idx):
        (x, value), (other_x, sign) = batch["value"], batch["sign"]
        mse = nn.functional.mse_loss(self(x, "value"), value)
        bce = nn.functional.binary_cross_entropy_with_logits(self(other_x, "sign"), sign)
        self.log_dict({"mse": mse, "bce": bce})
        return mse + bce

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, sign = batch
        accuracy = ((self(x, "sign") > 0) == (sign > 0.5)).float().mean()
        name = ("accuracy", "accuracy_shifted")[dataloader_idx]
        self.log(name, accuracy, add_dataloader_idx=False, sync_dist=True)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self(batch[0], "sign").sigmoid()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class WritePredictions(BasePredictionWriter):
    """Saves each rank's predictions, and which samples they are of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="epoch")
        self.folder = folder

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save((predictions, batch_indices), self.folder / f"rank{trainer.global_rank}.pt")


def main(args: argparse.Namespace) -> None:
    L.seed_everything(args.seed, workers=True)
    folder = Path(args.predictions)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        max_epochs=args.max_epochs,
        callbacks=WritePredictions(folder),
        enable_progress_bar=False,
        logger=False,
        enable_checkpointing=False,
    )
    batch_size = args.batch_size // trainer.world_size
    loaders = {
        "value": DataLoader(regression(4096, seed=1), batch_size, shuffle=True),
        "sign": DataLoader(classification(2048, seed=2), batch_size, shuffle=True),
    }
    val_sets = classification(1024, seed=3), classification(1024, seed=4, shift=0.3)
    val = [DataLoader(val_set, batch_size) for val_set in val_sets]
    model = MultiTask()
    trainer.fit(model, CombinedLoader(loaders, mode="max_size_cycle"), val)
    accuracy = trainer.callback_metrics["accuracy"]

    trainer.predict(model, val[0], return_predictions=False)
    trainer.strategy.barrier()
    if trainer.is_global_zero:
        right = count = 0
        for rank in range(trainer.world_size):
            predictions, indices = torch.load(folder / f"rank{rank}.pt", map_location="cpu")
            labels = val_sets[0].tensors[1][torch.tensor([i for b in indices[0] for i in b])]
            right += ((torch.cat(predictions).cpu() > 0.5) == (labels > 0.5)).sum().item()
            count += len(labels)
        print(f"predictions: {count}, accuracy {right / count:.4f}")
        print(f"metric: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--predictions", default="predictions")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
