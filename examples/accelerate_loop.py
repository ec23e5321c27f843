"""A loop of one's own with `accelerate`: accumulation, clipping, metrics over all devices, a state.

`Accelerator` takes the device that it finds; for several, start it with `accelerate launch`.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_RINGS = 4


def rings(num_points: int, seed: int) -> TensorDataset:
    """Points on circles around each other, one class each, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_points) % NUM_RINGS
    angle = 2 * torch.pi * torch.rand(num_points, generator=generator)
    radius = 1 + labels + 0.25 * torch.randn(num_points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


def train_epoch(accelerator: Accelerator, model, optimizer, schedule, loader) -> float:
    """One epoch; returns the mean loss over all devices."""
    model.train()
    total = torch.zeros((), device=accelerator.device)
    for points, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(points), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        total += loss.detach()
    return accelerator.reduce(total / len(loader), "mean").item()


@torch.no_grad()
def evaluate(accelerator: Accelerator, model, loader) -> float:
    """The accuracy on all devices' data, without what was repeated to fill a last batch."""
    model.eval()
    hits = []
    for points, labels in loader:
        predicted = model(points).argmax(1)
        hits.append(accelerator.gather_for_metrics((predicted == labels).float()))
    return torch.cat(hits).mean().item()


def main(args: argparse.Namespace) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(args.seed)
    batch_size = args.batch_size // 2 // accelerator.num_processes
    train = DataLoader(rings(2048, seed=1), batch_size, shuffle=True)
    val = DataLoader(rings(1000, seed=2), 128)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, NUM_RINGS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # accelerate takes a step of the schedule for each device.
    num_steps = args.max_epochs * 2048 // args.batch_size * accelerator.num_processes
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    model, optimizer, train, val, schedule = accelerator.prepare(
        model, optimizer, train, val, schedule
    )
    for epoch in range(args.max_epochs):
        loss = train_epoch(accelerator, model, optimizer, schedule, train)
        accelerator.print(f"epoch {epoch}: loss {loss:.4f}")
    accuracy = evaluate(accelerator, model, val)

    accelerator.save_state(args.checkpoint)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.wait_for_everyone()
    accelerator.load_state(args.checkpoint)
    assert evaluate(accelerator, model, val) == accuracy, "the checkpoint holds another model"
    accelerator.print(f"metric: val_accuracy {accuracy:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max_epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--checkpoint", default="checkpoints/accelerate_loop")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
