"""A user's program: it trains with Lightning on HPUs, and knows nothing of how they come about.

    python plain_training.py trainer 2 [STRATEGY]
    python plain_training.py fabric 1

Each rank compares the weights with those of a plain loop on the CPU over the whole batches, and
says so. scripts/check_wheel.py runs it where nothing but the wheel is installed.
"""

import sys

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# A step for all the data: whichever rank gets which, together they have the whole batch.
NUM_SAMPLES = 8
NUM_STEPS = 10


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))


def make_loader(num_ranks):
    inputs = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), NUM_SAMPLES // num_ranks)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, batch_idx):
        assert batch[0].device.type == "hpu"
        return loss_of(self.model, batch)

    def configure_optimizers(self):
        return make_optimizer(self.model)


def with_trainer(devices, strategy="auto"):
    trainer = L.Trainer(
        accelerator="hpu",
        devices=devices,
        strategy=strategy,
        max_epochs=NUM_STEPS,
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    module = Module()
    trainer.fit(module, make_loader(devices))
    trainer.save_checkpoint(f"{strategy}.ckpt")
    return module.model


def with_fabric(devices, strategy="auto"):
    fabric = L.Fabric(accelerator="hpu", devices=devices, strategy=strategy)
    fabric.launch()
    model = make_model()
    wrapped, optimizer = fabric.setup(model, make_optimizer(model))
    loader = fabric.setup_dataloaders(make_loader(devices))
    for _ in range(NUM_STEPS):
        for batch in loader:
            assert batch[0].device.type == "hpu"
            optimizer.zero_grad()
            fabric.backward(loss_of(wrapped, batch))
            optimizer.step()
    return model


def main(kind, devices, *strategy):
    trained = {"trainer": with_trainer, "fabric": with_fabric}[kind](int(devices), *strategy)
    expected = make_model()
    optimizer = make_optimizer(expected)
    for batch in list(make_loader(1)) * NUM_STEPS:
        optimizer.zero_grad()
        loss_of(expected, batch).backward()
        optimizer.step()
    # One card computes the CPU's bits; two add their halves in another order.
    tolerance = 0 if devices == "1" else 1e-6
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=0, atol=tolerance)
    sys.stdout.write("a rank equals the CPU\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
