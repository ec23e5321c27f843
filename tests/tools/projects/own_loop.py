"""A loop with Fabric that says itself on how many cards it runs, and measures as it goes."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision


def main():
    fabric = Fabric(accelerator="hpu", devices=2, strategy="ddp", precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(0)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 6))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=64)
    rows = torch.randn(512, 30, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(rows, rows[:, :6].argmax(1))
    train, val = fabric.setup_dataloaders(DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
    accuracy = MulticlassAccuracy(6).to(fabric.device)
    precision = MulticlassPrecision(6).to(fabric.device)
    for _ in range(2):
        model.train()
        for rows, labels in train:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            schedule.step()
            accuracy.update(model(rows), labels)
        fabric.print(accuracy.compute().item())
        accuracy.reset()
        model.eval()
        with torch.no_grad():
            for rows, labels in val:
                precision.update(model(rows), labels)
        fabric.print(precision.compute().item())
        precision.reset()


if __name__ == "__main__":
    main()
