"""python sending.py STRATEGY PRECISION MICRO_BATCHES: trains on eight cards, to be rehearsed."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_gaudi.strategies import HPUDeepSpeedStrategy

BATCH_SIZE, SIZE, NUM_LAYERS = 16, 512, 6


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layers = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(NUM_LAYERS))
        self.layers = nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def zero(stage):
    settings = {"stage": stage}
    if stage == 3:  # as of a model that does not stay on a card from its forward to its backward
        settings |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
        settings |= {"stage3_prefetch_bucket_size": 0}
    return HPUDeepSpeedStrategy(
        config={
            "zero_optimization": settings,
            "train_micro_batch_size_per_gpu": BATCH_SIZE,
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
        }
    )


if __name__ == "__main__":
    name, precision, num_micro_batches = sys.argv[1:]
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=8,
        strategy=zero(int(name[-1])) if name.startswith("zero") else name,
        precision=precision,
        accumulate_grad_batches=int(num_micro_batches),
        max_steps=3,
    )
    trainer.fit(Model(), DataLoader(torch.randn(512, SIZE), batch_size=BATCH_SIZE))
