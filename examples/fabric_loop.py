"""A training loop of one's own on Fabric: accumulation, all_reduce of metrics, save and load."""

import argparse
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 5


def spirals(num_points: int, seed: int) -> TensorDataset:
    """Points on five spiral arms, one class each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_points) % NUM_CLASSES
    radius = torch.rand(num_points, generator=generator)
    angle = 4 * radius + 2 * torch.pi * labels / NUM_CLASSES
    angle = angle + 0.15 * torch.randn(num_points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, NUM_CLASSES)
    )


def train_epoch(fabric: Fabric, model, optimizer, loader, accumulate: int) -> float:
    """One epoch; returns the mean loss over all ranks."""
    model.train()
    total = torch.zeros((), device=fabric.device)
    for index, (points, labels) in enumerate(loader):
        is_accumulating = (index + 1) % accumulate != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = nn.functional.cross_entropy(model(points), labels)
            fabric.backward(loss / accumulate)
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.detach()
    return fabric.all_reduce(total / len(loader), reduce_op="mean").item()


@torch.no_grad()
def evaluate(fabric: Fabric, model, loader) -> float:
    """The accuracy over all ranks."""
    model.eval()
    counts = torch.zeros(2, device=fabric.device)
    for points, labels in loader:
        counts[0] += (model(points).argmax(1) == labels).sum()
        counts[1] += len(labels)
    counts = fabric.all_reduce(counts, reduce_op="sum")
    return (counts[0] / counts[1]).item()


def main(args: argparse.Namespace) -> None:
    fabric = Fabric(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
    )
    fabric.launch()
    seed_everything(args.seed, workers=True)
    batch_size = args.batch_size // fabric.world_size
    train, val = fabric.setup_dataloaders(
        DataLoader(spirals(4000, seed=1), batch_size, shuffle=True, drop_last=True),
        DataLoader(spirals(2000, seed=2), 200),
    )
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer = fabric.setup(model, optimizer)

    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    for epoch in range(args.max_epochs):
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(epoch)
        loss = train_epoch(fabric, model, optimizer, train, args.accumulate)
        fabric.print(f"epoch {epoch}: loss {loss:.4f}")
        state["epoch"] = epoch + 1
    accuracy = evaluate(fabric, model, val)

    path = Path(args.checkpoint)
    fabric.save(path, state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    fabric.load(path, state)
    assert state["epoch"] == args.max_epochs
    assert evaluate(fabric, model, val) == accuracy, "the checkpoint holds another model"
    fabric.print(f"metric: val_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--checkpoint", default="checkpoints/fabric_loop.ckpt")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
