"""A loop on two GPUs with tensor parallelism."""

import torch
import torch.nn.functional as F  # noqa: N812
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.strategies import ModelParallelStrategy
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


def parallelize(model, device_mesh):
    plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, device_mesh["tensor_parallel"], plan)
    return model


def train(fabric, model, optimizer, loader, num_epochs: int):
    model.train()
    for _ in range(num_epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate(fabric, model, loader) -> float:
    model.eval()
    losses = torch.stack([F.cross_entropy(model(x), y) for x, y in loader])
    return fabric.all_reduce(losses.mean()).item()


def main():
    seed_everything(42)
    strategy = ModelParallelStrategy(parallelize, data_parallel_size=1, tensor_parallel_size=2)
    fabric = Fabric(accelerator="gpu", devices=2, strategy=strategy)
    fabric.launch()
    loader, val = fabric.setup_dataloaders(
        DataLoader(make_dataset(64, seed=1), batch_size=16, shuffle=True, drop_last=True),
        DataLoader(make_dataset(32, seed=2), batch_size=16),
    )
    model = fabric.setup_module(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    optimizer = fabric.setup_optimizers(optimizer)

    train(fabric, model, optimizer, loader, num_epochs=2)
    loss = evaluate(fabric, model, val)

    fabric.save("fabric_tensor_parallel.ckpt", {"model": model, "optimizer": optimizer})
    train(fabric, model, optimizer, loader, num_epochs=1)
    fabric.load("fabric_tensor_parallel.ckpt", {"model": model, "optimizer": optimizer})
    assert evaluate(fabric, model, val) == loss
    fabric.print(f"test_loss: {loss:.6f}")


if __name__ == "__main__":
    main()
