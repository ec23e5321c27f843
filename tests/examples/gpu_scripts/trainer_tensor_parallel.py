"""A small classifier on two GPUs with tensor parallelism."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        x = self.norm(x)
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Model(nn.Module):
    def __init__(self, dim: int = 32, num_layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(16, dim)
        self.layers = nn.ModuleList(FeedForward(dim, 4 * dim) for _ in range(num_layers))
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def make_dataset(num_samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 16, generator=generator)
    return TensorDataset(x, x[:, :10].argmax(1))


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is not None:
            return
        self.model = Model()
        plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
        for layer in self.model.layers:
            parallelize_module(layer, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y), sync_dist=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self.model(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    pl.seed_everything(42)
    train = DataLoader(make_dataset(64, seed=1), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(make_dataset(32, seed=2), batch_size=16)
    model = Classifier()
    checkpoint = ModelCheckpoint(monitor="val_loss")
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=2,
        strategy=ModelParallelStrategy(),
        max_epochs=2,
        gradient_clip_val=1.0,
        callbacks=[checkpoint],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, train, val)
    (result,) = trainer.test(ckpt_path="best", dataloaders=val, verbose=False)
    trainer.print(f"test_loss: {result['test_loss']:.6f}")


if __name__ == "__main__":
    main()
