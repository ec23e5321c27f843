"""Lightning's monitors, weight averaging, and callbacks of one's own, with a logger."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def friedman(num_samples: int, seed: int) -> TensorDataset:
    """Friedman's regression problem: five of ten features matter, not linearly."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(num_samples, 10, generator=generator)
    y = 10 * (torch.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5) ** 2
    y = y + 10 * x[:, 3] + 5 * x[:, 4] + torch.randn(num_samples, generator=generator)
    return TensorDataset(x, y.unsqueeze(1))


class GradientNorm(L.Callback):
    """Logs the norm of all gradients before each optimizer step."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        norms = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
        pl_module.log("grad_norm", torch.stack(norms).norm())


class BestEpoch(L.Callback):
    """Remembers the best epoch; its state is saved in checkpoints."""

    def __init__(self) -> None:
        self.best, self.epoch = float("inf"), -1

    def on_validation_end(self, trainer, pl_module):
        loss = trainer.callback_metrics["val_mse"].item()
        if not trainer.sanity_checking and loss < self.best:
            self.best, self.epoch = loss, trainer.current_epoch

    def state_dict(self):
        return {"best": self.best, "epoch": self.epoch}

    def load_state_dict(self, state_dict):
        self.best, self.epoch = state_dict["best"], state_dict["epoch"]


class Regressor(L.LightningModule):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(10, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_mse", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mse", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)]


def main(args: argparse.Namespace) -> None:
    L.seed_everything(args.seed, workers=True)
    best, checkpoints = BestEpoch(), ModelCheckpoint(monitor="val_mse", save_last=True)
    callbacks = [
        best,
        GradientNorm(),
        LearningRateMonitor("step"),
        DeviceStatsMonitor(cpu_stats=False),
        ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=10),
        StochasticWeightAveraging(swa_lrs=5e-3, swa_epoch_start=0.6, annealing_epochs=2),
        Timer(duration="00:00:10:00"),
        checkpoints,
    ]
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        max_epochs=args.max_epochs,
        callbacks=callbacks,
        logger=CSVLogger(args.logs, name="callbacks"),
        log_every_n_steps=10,
        gradient_clip_val=50.0,
        enable_progress_bar=False,
    )
    batch_size = args.batch_size // trainer.world_size
    train = DataLoader(friedman(4096, seed=1), batch_size, shuffle=True, drop_last=True)
    model = Regressor()
    val = DataLoader(friedman(1024, seed=2), batch_size)
    trainer.fit(model, train, val)
    trainer.validate(model, val, verbose=False)
    if trainer.is_global_zero:
        print(f"best epoch {best.epoch}: {best.best:.4f}; checkpoint {checkpoints.best_model_path}")
        print(f"metric: val_mse {trainer.callback_metrics['val_mse']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--logs", default="logs")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
